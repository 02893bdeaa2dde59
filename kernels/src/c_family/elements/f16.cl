// Values of operators: f16.

#define ELEMENT HALF
#define LOAD_ELEMENT(pointer, i) LOAD_HALF(pointer, i)
