// For attention after RoPE and KV append: queries are rotated, and the cache holds all keys and values.

fn q_of(at: u32) -> f32 { return q[at]; }

// Index for `q_of` of the first query, given the start `first` of queries in a row.
fn query_of(first: u32) -> u32 { return first; }

// Dimension `d` of the keys of four positions from `position` on.
fn keys_of(key: u32, d: u32, position: u32) -> Four { return keys[key + d * 4u]; }

// Four dimensions, from `dim` on, of a position's values, which start at `at`.
fn values_of(at: u32, dim: u32, position: u32) -> Four { return values_at(at, constants.head_dim - dim); }

fn prepare(item: u32, run: Run, position: u32, first_query: u32, heads: u32) {}

fn append(item: u32, run: Run, position: u32) {}
