// Values of operators: f32.

#define ELEMENT float
#define LOAD_ELEMENT(pointer, i) (pointer)[i]
