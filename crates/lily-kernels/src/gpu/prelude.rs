//! Metal's standard library for other compilers, as headers by the name of their `#include`.
//!
//! A kernel may use what both sets have; `docs/kernels.md` says what that is.

macro_rules! headers {
    ($folder:literal: $($name:literal,)*) => {
        &[
            $(($name, include_str!(concat!("../../prelude/", $folder, "/", $name))),)*
            // Apple's finer headers, all in one here.
            ("metal_atomic", EVERYTHING),
            ("metal_common", EVERYTHING),
            ("metal_math", EVERYTHING),
            ("metal_simdgroup", EVERYTHING),
            ("metal_simdgroup_matrix", EVERYTHING),
        ]
    };
}

const EVERYTHING: &str = "#include \"metal_stdlib\"\n";

/// For clang on a CPU, with the interface of the MSL test device's runtime.
pub const CPU: &[(&str, &str)] = headers! {
    "cpu":
    "lily_runtime.h",
    "lily_words.h",
    "lily_vectors.h",
    "lily_math.h",
    "lily_simd.h",
    "lily_atomic.h",
    "lily_matrix.h",
    "lily_constructors.h",
    "metal_stdlib",
    "metal_tensor",
    "MetalPerformancePrimitives/MetalPerformancePrimitives.h",
};

/// For NVRTC: C++20, `--device-as-default-execution-space`, sm_80 and up.
pub const CUDA: &[(&str, &str)] = headers! {
    "cuda":
    "lily_words.h",
    "lily_vectors.h",
    "lily_math.h",
    "lily_simd.h",
    "lily_atomic.h",
    "lily_matrix.h",
    "lily_tile.h",
    "lily_entry.h",
    "metal_stdlib",
    "metal_tensor",
    "MetalPerformancePrimitives/MetalPerformancePrimitives.h",
};
