// Access for attention that runs after RoPE and KV append. Queries are rotated, and the cache holds all keys
// and values.

fn q_of(at: u32) -> f32 { return q[at]; }

// Index of the first query for `q_of`. The queries of the row start at `first`.
fn query_of(first: u32) -> u32 { return first; }

// Dimension `d` of the keys of four positions, starting at `position`.
fn keys_of(key: u32, d: u32, position: u32) -> Four { return keys_at(key + d * 4u); }

// Four dimensions of the value at `position`, starting at dimension `dim`, which is at index `at`.
fn values_of(at: u32, dim: u32, position: u32) -> Four { return values_at(at, constants.head_dim - dim); }

fn prepare(item: u32, run: Run, position: u32, first_query: u32, heads: u32) {}

fn append(item: u32, run: Run, position: u32) {}
