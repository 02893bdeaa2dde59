// Attention of a run's queries, for any device.

struct Place {
    @builtin(local_invocation_index) item: u32,
}

fn item_of(place: Place) -> u32 { return place.item; }

const GROUP_QUERIES = QUERIES;

var<workgroup> fours: array<vec4<f32>, QUERIES * QUERY>;

fn attend_run(place: Place, run: Run) { attend_tiles(place.item, run); }
