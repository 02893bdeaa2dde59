//! Tests of the signatures that the crate reads from valid and invalid sources.

use proptest::prelude::*;
use ragtag_signatures::{
    AddressSpace, KernelArg, KernelSignature, ValidationError, parse_kernel_signatures,
    source_contains_kernel, validate_kernel_source,
};

fn names(source: &str) -> Vec<String> {
    parse_kernel_signatures(source).into_iter().map(|kernel| kernel.name).collect()
}

#[track_caller]
fn only(source: &str) -> KernelSignature {
    let [kernel] = <[_; 1]>::try_from(parse_kernel_signatures(source)).unwrap();
    kernel
}

/// Returns the parameters of a kernel with parameter list `list`, each as `name: space [const] type[*]`.
#[track_caller]
fn args(list: &str) -> Vec<String> {
    let arg = |arg: KernelArg| {
        let constant = if arg.is_const { "const " } else { "" };
        let star = if arg.is_pointer { "*" } else { "" };
        format!("{}: {:?} {constant}{}{star}", arg.name, arg.qualifier, arg.type_name)
    };
    only(&format!("__kernel void f({list}) {{}}")).args.into_iter().map(arg).collect()
}

#[test]
fn finds_only_definitions() {
    assert_eq!(
        names("__kernel void f(uint a) {} kernel void g(uint a) { if (a) { } } void h(uint a) {}"),
        ["f", "g"]
    );
    assert_eq!(names("__kernel void f(uint a); __kernel void f(uint a) {}"), ["f"]);
    assert_eq!(
        names("void __kernel f(uint a) {} static int x = 5; struct s { int y; }; __kernel void g() {}"),
        ["f", "g"]
    );
    assert_eq!(names("void f() { __kernel void g(uint a) {} }"), [""; 0]);
    assert_eq!(
        names("__constant float t[] = { 1, 2 }; __kernel void f(uint a) { float t[2] = {1, 2}; }"),
        ["f"]
    );
    assert_eq!(names("MACRO(x) __kernel void f(uint a) {}"), ["f"]);
    assert_eq!(names("__kernel\nvoid\nf\n(\nuint\na\n)\n{\n}\n"), ["f"]);
    for source in [
        "",
        "__kernel",
        "__kernel void",
        "__kernel void f",
        "__kernel void f(",
        "__kernel void f(uint a)",
        "__kernel {",
        "__kernel (uint) {",
        "} __kernel ) ( {",
    ] {
        assert_eq!(names(source), [""; 0], "{source}");
    }
}

#[test]
fn comments_and_strings_hide_their_content() {
    assert_eq!(names("/* __kernel void f(uint a) {} */ // __kernel void g(uint a) {}\n"), [""; 0]);
    assert_eq!(names("// goes on \\\n__kernel void f(uint a) {}\n__kernel void g(uint a) {}"), ["g"]);
    assert_eq!(names("__ker\\\r\nnel void f(uint a) {}"), ["f"]);
    assert_eq!(
        names("__constant char *s = \"} /* \\\" __kernel void f(uint a) {}\"; __kernel void g(uint a) {}"),
        ["g"]
    );
    assert_eq!(names("void f() { c = '{'; d = '\\''; e = '\"'; } __kernel void g(uint a) {}"), ["g"]);
    assert_eq!(names("__constant char *s = \"not closed\n; __kernel void g(uint a) {} /* nor this"), ["g"]);
    assert_eq!(names("__kernel/**/void/* a */f/**/(uint a) {}"), ["f"]);
}

#[test]
fn reads_all_forms_of_parameters() {
    assert_eq!(args(""), [""; 0]);
    assert_eq!(args("void"), [""; 0]);
    assert_eq!(
        args("const __global half *restrict x, __global float* y, global uint4 * const z"),
        ["x: Global const half*", "y: Global float*", "z: Global uint4*"]
    );
    assert_eq!(
        args("float const __global *x, volatile __global int *y, __local float *s, __constant float *t"),
        ["x: Global const float*", "y: Global int*", "s: Local float*", "t: Constant const float*"]
    );
    assert_eq!(
        args("uint a, const unsigned int b, unsigned c, long long d, struct pair e, float16 g"),
        [
            "a: Private uint",
            "b: Private const unsigned int",
            "c: Private unsigned",
            "d: Private long long",
            "e: Private struct pair",
            "g: Private float16"
        ]
    );
    assert_eq!(
        args("uint, unsigned int, struct pair, __global float *, __global float[]"),
        [
            ": Private uint",
            ": Private unsigned int",
            ": Private struct pair",
            ": Global float*",
            ": Global float*"
        ]
    );
    assert_eq!(
        args("__local float tile[4][5], __global float **p, __global float (*rows)[4], uint n[2]"),
        ["tile: Local float*", "p: Global float **", "rows: Global float **", "n: Private uint*"]
    );
    assert_eq!(
        args("read_only image2d_t image, __global uchar *x __attribute__((aligned(16))), sampler_t s"),
        ["image: Private image2d_t", "x: Global uchar*", "s: Private sampler_t"]
    );
    assert_eq!(args("uint a[max(1, 2)], uint b"), ["a: Private uint*", "b: Private uint"]);
}

#[test]
fn attributes_may_appear_anywhere() {
    let size = "__attribute__((vec_type_hint(float4), reqd_work_group_size(64, 2 * 2, (1))))";
    for source in [
        format!("{size} __kernel void f(uint a) {{}}"),
        format!("__kernel {size} void f(uint a) {{}}"),
        format!("__kernel void {size} f(uint a) {{}}"),
        format!("__kernel void f(uint a) {size} {{}}"),
        format!("void g() {{}} __kernel __attribute__((noinline)) {size} void f(uint a) {{}}"),
    ] {
        let kernel = only(&source);
        assert_eq!((kernel.name.as_str(), kernel.args.len()), ("f", 1), "{source}");
        assert_eq!(kernel.work_group, Some([64, 4, 1]), "{source}");
    }
    for list in ["64, 1", "64, 1, N", "64, 1, -1", "64, 1, 1 1", "64, 1, 9999999999", ""] {
        let source = format!("__kernel __attribute__((reqd_work_group_size({list}))) void f(uint a) {{}}");
        assert_eq!(only(&source).work_group, None, "{list}");
    }
    assert_eq!(only("__kernel void f(uint a) {}").work_group, None);
}

#[test]
fn reads_cuda_and_hip_kernels() {
    let kernel = only(
        "template <typename T> __device__ T f(T x) { return x; }\n\
         extern \"C\" __global__ void __launch_bounds__(32 * 8, 2) g(const float *__restrict__ x, uint *y, uint n) {}",
    );
    assert_eq!((kernel.name.as_str(), kernel.work_group), ("g", Some([256, 1, 1])));
    let read: Vec<_> = kernel.args.iter().map(|a| (a.qualifier, a.is_const, a.type_name.as_str())).collect();
    let (global, private) = (AddressSpace::Global, AddressSpace::Private);
    assert_eq!(read, [(global, true, "float"), (global, false, "uint"), (private, false, "uint")]);
    let bounds = "__attribute__((launch_bounds(64)))";
    assert_eq!(
        only(&format!("extern \"C\" __global__ {bounds} void g(uint *y) {{}}")).work_group,
        Some([64, 1, 1])
    );
    assert_eq!(only("extern \"C\" __global__ void g(uint *y) {}").work_group, None);
    // A host cannot find a kernel with a mangled name.
    for source in ["__global__ void g(uint *y) {}", "extern \"C++\" __global__ void g(uint *y) {}"] {
        assert_eq!(names(source), [""; 0], "{source}");
    }
    assert_eq!(names("extern \"C\" void g(uint *y) {}"), [""; 0]);
}

#[test]
fn macros_expand_from_their_definition_on() {
    let kernel = only(
        "#define KERNEL(items) __kernel __attribute__((reqd_work_group_size(items, 1, 1))) void\n\
         #define GLOBAL __global\n #  define ITEMS /* of a group */ (COUNT * 2)\n#define COUNT 128\n#define INPUT float\n\
         #define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n#define M 4\n#undef INPUT\n#define INPUT half\n\
         KERNEL(ITEMS) JOIN(matmul_, M)(\n    const GLOBAL INPUT *restrict JOIN(x, M), uint JOIN(, n)\n) {}\n#undef M\n#define M 8\n",
    );
    assert_eq!((kernel.name.as_str(), kernel.work_group), ("matmul_4", Some([256, 1, 1])));
    assert_eq!((kernel.args[0].name.as_str(), kernel.args[0].type_name.as_str()), ("x4", "half"));
    assert_eq!(kernel.args[1].name, "n");
    assert_eq!(names("KERNEL(1) f(uint a) {}\n#define KERNEL(n) __kernel void\n"), [""; 0]);
    // Arguments that span several lines, have commas in parentheses, or form an empty list; and a macro name
    // without arguments.
    assert_eq!(names("#define K(a, b) __kernel void b\nK(\n  (1, 2),\n  f\n)(uint a) {}"), ["f"]);
    assert_eq!(
        names("#define K() __kernel\nK() void f(uint a) {} int K; K( ) void g(uint a) {}"),
        ["f", "g"]
    );
    assert_eq!(
        names("#define EMPTY\n#define K EMPTY __kernel EMPTY\nK void EMPTY f EMPTY (uint a) {}"),
        ["f"]
    );
    assert_eq!(names("#define K (a) __kernel\n__kernel void f(uint x) {}"), ["f"]);
    assert_eq!(
        names("#define S(x) #x \"{\"\n__constant char *s = S({ __kernel); __kernel void f(uint a) {}"),
        ["f"]
    );
    assert_eq!(
        names("#define TWO(n) __kernel void n##_a(uint x) {} __kernel void n##_b(uint x) {}\nTWO(f)"),
        ["f_a", "f_b"]
    );
    // A macro does not expand within itself, even through another macro.
    assert_eq!(names("#define f f\n#define a b\n#define b a\n__kernel void f(uint a) {}"), ["f"]);
    assert_eq!(names("#define f(x) f(x)\n__kernel void f(uint f(a)) {}"), ["f"]);
}

#[test]
fn exactly_one_branch_of_a_condition_counts() {
    let kernel = |name: &str| format!("__kernel void {name}(uint a) {{}}\n");
    let (f, g, h) = (kernel("f"), kernel("g"), kernel("h"));
    assert_eq!(names(&format!("#if 0\n{f}#else\n{g}#endif\n{h}")), ["g", "h"]);
    assert_eq!(names(&format!("#ifdef X\n{f}#elif 1\n{g}#elif 1\n{h}#else\n{f}#endif")), ["g"]);
    assert_eq!(names(&format!("#define X\n#ifdef X\n{f}#endif\n#ifndef X\n{g}#endif\n")), ["f"]);
    assert_eq!(
        names(&format!(
            "#if 0\n#if 1\n{f}#else\n{f}#endif\n#define Y 1\n#else\n{g}#endif\n#ifdef Y\n{h}#endif"
        )),
        ["g"]
    );
    assert_eq!(names(&format!("#endif\n#else\n#elif 1\n{f}#if 1\n{g}")), ["f", "g"]);
    for (condition, holds) in [
        ("1", true),
        ("X", false),
        ("X == 0", true),
        ("N", true),
        ("N > 6 && N <= 7", true),
        ("defined N && !defined(X)", true),
        ("defined(N) == 0", false),
        ("TWICE(N) == 14", true),
        ("-1 < 0u", true),
        ("1 + 2 * 3 == 7 && (1 + 2) * 3 == 9", true),
        ("10 - 2 - 3 == 5", true),
        ("0x10 == 16 && 010 == 8 && 0b11 == 3", true),
        (
            "(1 << 4 | 1) == 17 && (6 ^ 3 & 1) == 7 && ~0 == -1 && 7 % 4 == 3 && 7 / 2 == 3 && 8 >> 1 == 4",
            true,
        ),
        ("!N || 1 != 1 || 2 >= 3", false),
        ("", false),
        ("1 / 0", false),
        ("1 2", false),
        ("(1", false),
        ("1 +", false),
        ("1 << 64", false),
        ("99999999999999999999", false),
        ("'a'", false),
        ("defined", false),
    ] {
        let source = format!("#define N 7\n#define TWICE(x) ((x) * 2)\n#if {condition}\n{f}#endif");
        assert_eq!(source_contains_kernel(&source, "f"), holds, "{condition}");
    }
}

#[test]
fn validates_sources() {
    let source = "__kernel void f(uint a) {} __kernel void g(uint a) {}";
    assert_eq!(validate_kernel_source(source, 2).map(|kernels| kernels.len()), Ok(2));
    let error = |source, expected| validate_kernel_source(source, expected).unwrap_err();
    assert_eq!(error("// __kernel void f(uint a) {}", 1), ValidationError::NoKernels);
    assert_eq!(error("__kernel void f(void) {}", 1), ValidationError::NoArguments { kernel: "f".into() });
    let twice = "__kernel void f(uint a) {} __kernel void f(int a) {}";
    assert_eq!(error(twice, 2), ValidationError::Duplicate { kernel: "f".into() });
    assert_eq!(
        error(source, 3),
        ValidationError::WrongCount { expected: 3, found: vec!["f".into(), "g".into()] }
    );
    assert_eq!(error(source, 3).to_string(), "expected 3 kernels, but the source has 2: f, g");
    assert!(source_contains_kernel(source, "g") && !source_contains_kernel(source, "h"));
}

#[test]
fn expansions_are_bounded() {
    let doubling = |last: &str| {
        let defines =
            (1..64).map(|i| format!("#define D{i}(x) D{0}(x) D{0}(x)\n", i - 1)).collect::<String>();
        format!("#define D0(x) x\n{defines}{last}")
    };
    let nested = |name: &str, n: usize| [&format!("{name}(").repeat(n), "a", &")".repeat(n)].concat();
    for source in [
        doubling("D63(a)"),
        format!("#define D(x) x x\n{}", nested("D", 64)),
        format!("#define F(x) x\n{}", "F(".repeat(100_000)),
    ] {
        assert_eq!(validate_kernel_source(&source, 1), Err(ValidationError::TooLong));
        assert_eq!(names(&source), [""; 0]);
    }
    let chain = (1..20_000).map(|i| format!("#define A{i} A{} x\n", i - 1)).collect::<String>();
    for source in [
        format!("#define F(x) x\n{}", nested("F", 300)),
        format!("#define J(x) x##x\n#define K(x) J(x)\n{}", nested("K", 64)),
        format!("{chain} A19999;"),
        format!("#if {}1\n#endif", "(".repeat(100_000)),
        format!("#if {}1\n#endif", "!".repeat(100_000)),
        "(".repeat(100_000),
        "{".repeat(100_000),
    ] {
        assert_eq!(names(&format!("{source}\n")), [""; 0]);
    }
}

/// Returns a strategy for tokens. The tests assemble plausible sources from them.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "__kernel",
        "kernel",
        "void",
        "f",
        "g",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "*",
        ",",
        ";",
        "const",
        "__global",
        "uint",
        "4",
        "\n",
        "\n#define ",
        "f(x) ",
        "x",
        "##",
        "#",
        "\n#if ",
        "\n#ifdef ",
        "\n#else\n",
        "\n#elif ",
        "\n#endif\n",
        "\n#undef ",
        "defined",
        "1",
        "0",
        "+",
        "-",
        "/",
        "/*",
        "*/",
        "//",
        "\"",
        "'",
        "\\",
        "\\\n",
        "__attribute__",
        "((",
        "reqd_work_group_size",
        "))",
        "é",
        "\u{1f600}",
        "\r",
        " ",
        "  ",
    ])
}

proptest! {
    #[test]
    fn no_text_panics(source in any::<String>()) {
        let _ = parse_kernel_signatures(&source);
    }

    #[test]
    fn no_text_of_pieces_panics(pieces in prop::collection::vec(piece(), 0..120), blank in any::<bool>()) {
        let source = pieces.join(if blank { " " } else { "" });
        let kernels = parse_kernel_signatures(&source);
        prop_assert_eq!(validate_kernel_source(&source, kernels.len()).is_ok_and(|k| k != kernels), false);
    }

    #[test]
    fn reads_back_generated_signatures(
        kernels in prop::collection::vec(("[a-z][a-z0-9_]{0,8}_k", prop::collection::vec((any::<bool>(), any::<bool>()), 0..9)), 0..6),
        before in prop::sample::select(vec!["", "// x\n", "/* { */", "#pragma x {\n", "struct s { int x; };\n"]),
    ) {
        let mut source = String::new();
        for (name, args) in &kernels {
            let arg = |(i, (pointer, constant)): (usize, &(bool, bool))| {
                let constant = if *constant { "const " } else { "" };
                if *pointer { format!("{constant}__global float *a{i}") } else { format!("{constant}uint a{i}") }
            };
            let list: Vec<_> = args.iter().enumerate().map(arg).collect();
            source.push_str(&format!("{before}__kernel void {name}({}) {{ {{ }} }}\n", list.join(", ")));
        }
        let read: Vec<_> = parse_kernel_signatures(&source)
            .into_iter()
            .map(|k| (k.name, k.args.iter().map(|a| (a.is_pointer, a.is_const)).collect::<Vec<_>>()))
            .collect();
        prop_assert_eq!(read, kernels);
    }
}
