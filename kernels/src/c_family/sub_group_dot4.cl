// Dot product of four signed bytes with four others, plus `sum`. In this form, Intel's compiler recognizes
// that the bytes are already packed. The first byte differs because the compiler replaces it by the word.
FN int dot4_of_vectors(uint a, uint b, int sum) {
    char4 left = as_char4(a), right = as_char4(b);
    int first = ((int)(a << 24) >> 24) * ((int)(b << 24) >> 24);
    return sum + first + (int)left.y * (int)right.y + (int)left.z * (int)right.z + (int)left.w * (int)right.w;
}
#define dot4 dot4_of_vectors
