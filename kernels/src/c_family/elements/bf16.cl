// Values of operators: bf16.

#define ELEMENT ushort
#define LOAD_ELEMENT(pointer, i) AS_FLOAT((uint)(pointer)[i] << 16)
