// Queries are turned and keys and values are in the cache before attention begins.

fn q_of(at: u32) -> f32 { return q[at]; }

// Where the first query is that `q_of` knows, of those that begin at `first` in a row.
fn query_of(first: u32) -> u32 { return first; }

// Dimension `d` of the keys of four positions, whose first is `position`.
fn keys_of(key: u32, d: u32, position: u32) -> Four { return keys[key + d * 4u]; }

// Four dimensions from `dim` on of a position's values, which are at `at`.
fn values_of(at: u32, dim: u32, position: u32) -> Four { return values_at(at, constants.head_dim - dim); }

fn prepare(item: u32, run: Run, position: u32, first_query: u32, heads: u32) {}

fn append(item: u32, run: Run, position: u32) {}
