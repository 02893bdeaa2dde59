// Leaves the sums of a product unchanged.

fn share(row: u32, sums: vec4<f32>, place: Place) { gather(row, sums, place); }

// Returns the factor by which the sums of a row are multiplied.
fn factor_of(row: u32, place: Place) -> f32 { return 1.0; }
