use crate::gpu::Source;

use super::*;

const TEXT: &str = r#"#include <metal_stdlib>
using namespace metal;
struct Args { uint rows; };
#line 1 "double/kernel.metal"
// Twice. "quotes" and [[attributes]] in comments are left alone.
[[kernel, max_total_threads_per_threadgroup(32 * 2)]] void twice(
    constant Args& args [[buffer(0)]],
    const device float4* x [[buffer(1)]],  // [rows]
    device float4* y [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]])
{
    threadgroup float sums[2][32];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        sums[i][lane] = 0.0f;
    }
    y[row] = x[row] * 2.0f;
}

kernel void other(device uint* out [[buffer(0)]]) { out[0] = 1; }
"#;

fn source(text: &str) -> Source {
    Source::metal(text, "twice")
}

/// The message for [`TEXT`] with one place replaced.
fn refusal(old: &str, new: &str) -> String {
    assert!(TEXT.contains(old), "nothing to replace: {old}");
    let source = source(&TEXT.replace(old, new));
    match translate(&source, Dialect::Cpu) {
        Ok(translation) => panic!("taken for correct:\n{}", translation.text),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_kernel_becomes_a_function_with_an_entry_point() {
    let cpu = translate(&source(TEXT), Dialect::Cpu).expect("the text is correct");
    assert_eq!(cpu.function, "twice");
    assert_eq!(cpu.max_threads.as_deref(), Some("32 * 2"));
    let buffers: Vec<_> =
        cpu.buffers.iter().map(|b| (&*b.name, &*b.element, b.is_reference, b.is_const)).collect();
    let expected =
        [("args", "Args", true, true), ("x", "float4", false, true), ("y", "float4", false, false)];
    assert_eq!(buffers, expected);
    for expected in [
        "LILY_KERNEL void kernel_twice(\n",
        "    constant Args& args ,\n",
        "LILY_THREADGROUP((float), sums, [2][32], 0)",
        "kernel_twice(*(constant Args*)call.reference(0, sizeof(Args)), (const device float4*)\
         call.pointer(1, sizeof(float4)), (device float4*)call.pointer(2, sizeof(float4)), \
         ::lily_rt::builtin<uint>(call.threadgroup_position_in_grid()), \
         ::lily_rt::builtin<ushort>(call.thread_index_in_simdgroup()));",
        "const uint lily_max_threads = 32 * 2;",
    ] {
        assert!(cpu.text.contains(expected), "{expected} is missing in\n{}", cpu.text);
    }
    assert!(!cpu.text.contains("pragma unroll"));
}

#[test]
fn the_entry_point_of_cuda_takes_the_arguments_by_value() {
    let cuda = translate(&source(TEXT), Dialect::Cuda).expect("the text is correct");
    for expected in [
        "extern \"C\" __global__ void __launch_bounds__(32 * 2, LILY_MIN_BLOCKS) twice(const \
         __grid_constant__ Args args, const float4* __restrict__ x, float4* __restrict__ y)",
        "kernel_twice(args, x, y, lily_builtin<uint>(lily_threadgroup_position_in_grid()), \
         lily_builtin<ushort>(lily_thread_index_in_simdgroup()));",
        "#pragma unroll",
    ] {
        assert!(cuda.text.contains(expected), "{expected} is missing in\n{}", cuda.text);
    }
    assert!(!cuda.text.contains("kernel_other(out"), "one entry point:\n{}", cuda.text);
}

#[test]
fn a_kernel_waits_for_the_one_before_it_once() {
    let at_start = "y) {\n    wait_for_previous_kernel();\n    kernel_twice(";
    let cuda = translate(&source(TEXT), Dialect::Cuda).expect("the text is correct");
    assert!(cuda.text.contains(at_start), "{}", cuda.text);
    let body = TEXT.find("twice(").and_then(|at| Some(at + TEXT[at..].find("{\n")? + 2));
    let (head, rest) = TEXT.split_at(body.expect("the kernel has a body"));
    let own = format!("{head}    wait_for_previous_kernel();\n{rest}");
    let cuda = translate(&source(&own), Dialect::Cuda).expect("the text is correct");
    assert_eq!(cuda.text.matches("wait_for_previous_kernel();").count(), 1, "{}", cuda.text);
}

#[test]
fn no_line_moves() {
    let cpu = translate(&source(TEXT), Dialect::Cpu).expect("the text is correct");
    for (before, after) in TEXT.lines().zip(cpu.text.lines()) {
        if before.contains("y[row]") || before.contains("// [rows]") {
            assert_eq!(before.contains("y[row]"), after.contains("y[row]"));
            assert_eq!(before.contains("// [rows]"), after.contains("// [rows]"));
        }
    }
    let line = |text: &str| text.lines().position(|l| l.contains("y[row]"));
    assert_eq!(line(TEXT), line(&cpu.text));
}

#[test]
fn kernels_outside_of_the_dialect_are_refused_with_file_and_line() {
    let cases = [
        ("void twice", "void twince", "no kernel function `twice`"),
        ("[[buffer(1)]]", "", "double/kernel.metal:4: kernel parameter"),
        ("[[buffer(1)]]", "[[texture(1)]]", "kernel.metal:4: attribute [[texture(1)]] of `x`"),
        ("[[buffer(1)]]", "[[buffer(3)]]", "kernel.metal:2: `y` is buffer(2), need buffer(1)"),
        ("const device float4* x", "float4 x", "kernel.metal:4: buffer `x` is float4"),
        ("constant Args& args", "device Args& args", "reference to constant memory"),
        ("uint row [[", "int row [[", "kernel.metal:6: `row` is int"),
        ("[[thread_index_in_simdgroup]]", "[[thread_index_in_quadgroup]]", "kernel.metal:7"),
        ("[[kernel, max", "template <int N> [[kernel, max", "is a template"),
        ("#pragma unroll", "[[unroll]]", "kernel.metal:10: attribute [[unroll]]"),
        ("{ out[0] = 1; }", ";", "kernel.metal:17: kernel `other` is declared only"),
    ];
    for (old, new, expected) in cases {
        let found = refusal(old, new);
        assert!(found.contains(expected), "{found}\nneed {expected}");
    }
}

#[test]
fn threadgroup_arrays_are_plain_declarations_of_a_kernel() {
    let cases = [
        (
            "sums[2][32];",
            "sums[2][32] = {};",
            "kernel.metal:9: a threadgroup array with an initial",
        ),
        ("sums[2][32];", "sums[2][32], more[3];", "kernel.metal:9: several threadgroup arrays"),
        (
            "kernel void other",
            "threadgroup uint all[4];\nkernel void other",
            "kernel.metal:17: thread",
        ),
    ];
    for (old, new, expected) in cases {
        let found = refusal(old, new);
        assert!(found.contains(expected), "{found}\nneed {expected}");
    }
    for (declaration, expected) in [
        ("threadgroup atomic<uint> n;", "LILY_THREADGROUP((atomic<uint>), n, , 0)"),
        (
            "threadgroup uint4 t[(8 + 8) * 9 / 8];",
            "LILY_THREADGROUP((uint4), t, [(8 + 8) * 9 / 8], 0)",
        ),
        ("threadgroup alignas(16) half t[8];", "LILY_THREADGROUP((alignas(16) half), t, [8], 0)"),
        ("threadgroup float* p = &sums[0];", "threadgroup float* p = &sums[0];"),
    ] {
        let text = TEXT.replace("threadgroup float sums[2][32];", declaration);
        let cpu = translate(&source(&text), Dialect::Cpu).expect(declaration);
        assert!(cpu.text.contains(expected), "{expected} is missing in\n{}", cpu.text);
    }
}

#[test]
fn pointers_without_an_address_space_are_refused() {
    let place = "y[row] = x[row] * 2.0f;";
    for bad in [
        "float* p;",
        "const float* p;",
        "float const* p;",
        "Args& a = args;",
        "auto& a = args;",
        "float q = *(float*)0;",
        "metal::vec<float, 4>* p;",
        "simdgroup_matrix<float, 8, 8> (&p)[2];",
        "atomic_uint* p;",
    ] {
        let found = refusal(place, bad);
        assert!(
            found.contains("double/kernel.metal:14: pointer or reference to"),
            "{bad}: {found}"
        );
    }
    for good in [
        "thread float* p;",
        "const device float4* p = x;",
        "float const thread* p;",
        "constant Args& a = args;",
        "thread auto& a = args;",
        "float q = float(*p) * float(lane) * sizeof(float) * 2;",
        "thread simdgroup_matrix<float, 8, 8> (&p)[2];",
        "volatile device atomic_uint* p;",
        "const uint n = row * lane & 3;",
    ] {
        let text = TEXT.replace(place, good);
        assert!(translate(&source(&text), Dialect::Cpu).is_ok(), "{good}");
    }
}

#[test]
fn words_that_a_gpu_does_not_have_are_refused_outside_of_device_specific_text() {
    let place = "y[row] = x[row] * 2.0f;";
    for (bad, word) in [
        ("double d = 0.0f;", "`double`"),
        ("float f = std::exp(1.0f);", "`std`"),
        ("static int n;", "`static`"),
        ("asm(\"nop\");", "`asm`"),
        ("bool b = isnan(1.0f);", "`isnan`"),
        ("__builtin_trap();", "`__builtin_trap`"),
    ] {
        let found = refusal(place, bad);
        assert!(found.starts_with(&format!("double/kernel.metal:14: {word}")), "{found}");
        let text = TEXT.replace(place, &format!("\n#ifdef __METAL_CUDA__\n{bad}\n#endif\n"));
        assert!(translate(&source(&text), Dialect::Cpu).is_ok(), "{bad}");
    }
}

#[test]
fn text_that_does_not_end_is_an_error() {
    for (bad, expected) in [
        ("/* no end", "arguments:1: comment"),
        ("#line 5 \"a.h\"\n\"no end\nx", "a.h:5: string"),
        ("kernel void twice(", "arguments:1: `(` without `)`"),
        ("kernel void twice() {", "arguments:1: `{` without `}`"),
        ("kernel void twice", "kernel `twice` has no parameters"),
        ("kernel void", "no parameters"),
        ("[[kernel", "no kernel function"),
        ("threadgroup float", "no kernel function"),
        ("threadgroup", "no kernel function"),
    ] {
        let error = translate(&source(bad), Dialect::Cpu).expect_err(bad).to_string();
        assert!(error.contains(expected), "{error}\nneed {expected}");
    }
}

#[test]
fn cuda_text_is_for_nvrtc_as_it_is_and_for_nobody_else() {
    let text = "extern \"C\" __global__ void twice() { asm volatile(\"\"); }\n";
    let source = Source { language: Language::Cuda, ..Source::metal(text, "twice") };
    assert_eq!(translate(&source, Dialect::Cuda).expect("nothing is checked").text, text);
    let refused = translate(&source, Dialect::Cpu).expect_err("clang does not take it");
    assert!(refused.message.contains("need Metal text"), "{refused}");
}
