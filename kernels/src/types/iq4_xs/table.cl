#define TABLE_0 0xbfad9881u
#define TABLE_4 0xf6eaddcfu
#define TABLE_8 0x26190d01u
#define TABLE_12 0x71594535u

