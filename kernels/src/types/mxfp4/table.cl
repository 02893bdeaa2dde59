#define TABLE_0 0x03020100u
#define TABLE_4 0x0c080604u
#define TABLE_8 0xfdfeff00u
#define TABLE_12 0xf4f8fafcu

