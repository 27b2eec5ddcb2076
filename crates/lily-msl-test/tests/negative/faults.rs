//! The planted faults.

use lily_msl_test::{Build, Order};

/// What finds a fault.
#[derive(Clone, Copy)]
pub enum Found {
    /// The rules of the dialect.
    ByTranslator,
    /// clang, with the prelude.
    ByCompiler,
    /// A launch.
    Running(Build, Order),
}

/// One place of a text, broken.
pub struct Fault {
    pub what: &'static str,
    pub victim: &'static str,
    /// Stands in the text once.
    pub old: &'static str,
    pub new: &'static str,
    pub found: Found,
    /// Part of the message.
    pub message: &'static str,
    /// Part of the line that the message names; empty if it names none.
    pub at: &'static str,
}

const TRANSLATOR: Found = Found::ByTranslator;
const COMPILER: Found = Found::ByCompiler;
const FAST: Found = Found::Running(Build::Fast, Order::Forward);
const FAST_REVERSE: Found = Found::Running(Build::Fast, Order::Reverse);
const CHECKED: Found = Found::Running(Build::Checked, Order::Forward);
const CHECKED_REVERSE: Found = Found::Running(Build::Checked, Order::Reverse);

macro_rules! faults {
    ($($what:literal, $victim:ident, $found:ident: $old:literal => $new:literal, $message:literal, $at:literal;)*) => {
        pub const FAULTS: &[Fault] = &[$(Fault {
            what: $what,
            victim: stringify!($victim),
            old: $old,
            new: $new,
            found: $found,
            message: $message,
            at: $at,
        },)*];
    };
}

faults! {
    // ---- the translator -----------------------------------------------------------------------
    "an attribute that GPUs do not share", norm, TRANSLATOR:
        "[[thread_index_in_simdgroup]]" => "[[thread_index_in_quadgroup]]",
        "not in the dialect", "quadgroup";
    "a local pointer without address space", norm, TRANSLATOR:
        "const device float4* own" => "const float4* own",
        "without an address space", "float4* own";
    "a reference without address space", norm, TRANSLATOR:
        "thread float4& v" => "float4& v",
        "without an address space", "float4& v";
    "a cast to a pointer without address space", norm, TRANSLATOR:
        "own[tid];" => "*(const float4*)(own + tid);",
        "without an address space", "(own + tid)";
    "a gap between buffers", norm, TRANSLATOR:
        "[[buffer(3)]]" => "[[buffer(4)]]",
        "need buffer(3)", "void norm(";
    "a parameter without attribute", norm, TRANSLATOR:
        "uint lane [[thread_index_in_simdgroup]]" => "uint lane",
        "needs one [[attribute]]", "uint lane";
    "a reference to device memory", norm, TRANSLATOR:
        "constant Args& args" => "const device Args& args",
        "need a reference to constant memory", "Args& args";
    "an initial value of threadgroup memory", norm, TRANSLATOR:
        "threadgroup float parts[4];" => "threadgroup float parts[4] = {};",
        "initial value", "parts[4]";
    "a threadgroup array in a helper", norm, TRANSLATOR:
        "{ return sum + dot(v, v); }" => "{ threadgroup float s[2]; return sum + dot(v, v); }",
        "outside of a kernel's body", "s[2]";
    "a double", norm, TRANSLATOR:
        "float total = 0.0f;" => "double total = 0.0f;",
        "`double`", "double total";
    "a question that fast math answers wrongly", norm, TRANSLATOR:
        "y[row * (N / 4) + tid]" => "if (isnan(total)) return;\n    y[row * (N / 4) + tid]",
        "`isnan`", "isnan(";
    "a static variable", norm, TRANSLATOR:
        "float total = 0.0f;" => "static float total = 0.0f;",
        "`static`", "static";
    "a function of one compiler", norm, TRANSLATOR:
        "dot(v, v)" => "__builtin_fmaf(v.x, v.x, 0.0f)",
        "`__builtin_fmaf`", "__builtin";

    // ---- the compiler -----------------------------------------------------------------------------
    "device memory through a threadgroup pointer", norm, COMPILER:
        "const device float4* own = x" => "const threadgroup float4* own = x",
        "cannot initialize", "float4* own";
    "device memory for a thread reference", norm, COMPILER:
        "scale_all(v, " => "scale_all(y[tid], ",
        "no matching function", "scale_all(y";
    "threadgroup memory for a device pointer", norm, COMPILER:
        "const threadgroup float* parts, uint i" => "const device float* parts, uint i",
        "no matching function", "part(parts, i)";
    "a cast between address spaces", norm, COMPILER:
        "own[tid];" => "own[tid];\n    const device float* p = static_cast<const device float*>(parts); sink(p);",
        "static_cast", "static_cast";
    "a write through a const pointer", norm, COMPILER:
        "own[tid];" => "own[tid];\n    own[tid] = v;",
        "read-only", "own[tid] = v";
    "a write to constant memory", norm, COMPILER:
        "float total = 0.0f;" => "float total = 0.0f;\n    args.eps = total;",
        "const", "args.eps = total";
    "a double literal", norm, COMPILER:
        "float(N) + args.eps" => "float(N) * 1.5 + args.eps",
        "double", "1.5";
    "a float rounded to bfloat without a word", norm, COMPILER:
        "own[tid];" => "own[tid];\n    bfloat low = v.x; v.x = float(low);",
        "implicit conversion", "bfloat low";
    "an array of variable length", norm, COMPILER:
        "float total = 0.0f;" => "float total = 0.0f;\n    float many[args.parts]; many[0] = total;",
        "variable length array", "many[args";
    "an atomic operation on a thread's own memory", norm, COMPILER:
        "atomic_fetch_add_explicit(count" => "atomic_uint own_count;\n    atomic_fetch_add_explicit(&own_count",
        "no matching function", "(&own_count";
    "a vector with too few elements", norm, COMPILER:
        "own[tid];" => "own[tid];\n    v = float4(v.x, v.y, v.z);",
        "as many elements as its width", "";
    "as_type between sizes", norm, COMPILER:
        "own[tid];" => "own[tid];\n    v.x = as_type<float>(ushort(1));",
        "equal sizes", "";
    "a name that hides another", norm, COMPILER:
        "float total = 0.0f;" => "float total = 0.0f;\n    { float sum = 1.0f; total = sum - 1.0f; }",
        "shadows", "float sum = 1.0f";
    "a name that nobody declares", norm, COMPILER:
        "float(N)" => "float(HIDDEN)",
        "undeclared identifier 'HIDDEN'", "HIDDEN";

    // ---- launches, both builds ----------------------------------------------------------------------
    "a barrier for some threads", norm, FAST:
        "    threadgroup_barrier(" => "    if (tid < 100) threadgroup_barrier(",
        "finished", "if (tid < 100)";
    "a barrier behind an early end", norm, FAST:
        "    threadgroup_barrier(" => "    if (simd == 3) return;\n    threadgroup_barrier(",
        "threads will never meet", "    threadgroup_barrier";
    "two barriers in two branches", norm, FAST:
        "    threadgroup_barrier(mem_flags::mem_threadgroup);" =>
        "    if (simd < 2) {\n        threadgroup_barrier(mem_flags::mem_threadgroup);\n    } else {\n        \
         threadgroup_barrier(mem_flags::mem_threadgroup);  // second\n    }",
        "divergent barrier", "// second";
    "one simd operation in two branches", norm, FAST:
        "float sum = simd_sum(squares(v, 0.0f));" =>
        "float sum = squares(v, 0.0f);\n    if (lane < 20) {\n        sum = simd_sum(sum);\n    } else {\n        \
         sum = simd_sum(sum);  // second\n    }",
        "divergent simdgroup operation", "// second";
    "different simd operations at once", norm, FAST:
        "float sum = simd_sum(squares(v, 0.0f));" =>
        "float sum = squares(v, 0.0f);\n    if (lane < 20) sum = simd_max(sum);\n    sum = simd_sum(sum);",
        "while other lanes of the simdgroup are at simd_max", "    sum = simd_sum(sum);";
    "a simd operation behind an early end", norm, FAST_REVERSE:
        "float sum = simd_sum" => "if (lane == 31) return;\n    float sum = simd_sum",
        "lanes of the simdgroup have finished", "float sum = simd_sum";
    "a shuffle from a lane that is none", norm, FAST:
        "float sum = simd_sum(squares(v, 0.0f));" =>
        "float sum = simd_sum(squares(v, 0.0f));\n    sum = simd_shuffle(sum, ushort(lane + 1));",
        "simd_shuffle from lane 32", "simd_shuffle(";
    "a matrix load with two places", product, FAST:
        "rows + simd * 64, 8)" => "rows + tid / 16 * 8, 8)",
        "differ between lanes", "tid / 16";
    "a read behind a buffer", norm, FAST:
        "own[tid];" => "own[tid + 1];",
        "access at byte 4096 of buffer(1), which has 4096 bytes", "own[tid + 1]";
    "a write far outside", norm, FAST:
        "    y[row * (N / 4) + tid]" => "    y[row * (N / 4) + tid + 0xffffff00u]",
        "of buffer(2)", "0xffffff00u";
    "a pointer to nowhere", norm, FAST:
        "own[tid];" => "own[tid];\n    v = v + *(const device float4*)(ulong(args.parts) * 4);",
        "access to unmapped address 0x10", "args.parts) * 4";
    "33 KiB of threadgroup memory", norm, FAST:
        "parts[4];" => "parts[8300];",
        "over the 32 KiB", "parts[8300]";
    "a thread with a large array", norm, FAST:
        "float4 v = own[tid];" =>
        "float4 v = own[tid];\n    float4 many[16384];\n    \
         for (uint i = 0; i < 16384; i++) many[(i * args.parts) % 16384] = v;\n    v = many[tid];",
        "KiB of stack", "";
    "counting without atomic addition", norm, FAST_REVERSE:
        "atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);" =>
        "atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + 1u, memory_order_relaxed);",
        "wrong result in buffer(3)", "";

    // ---- launches, checked build ----------------------------------------------------------------------
    "no barrier in front of a read", norm, CHECKED:
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n" => "",
        "threadgroup memory never written", "return parts[i]";
    "the same, in the other order", norm, CHECKED_REVERSE:
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n" => "",
        "threadgroup memory never written", "return parts[i]";
    "a barrier for other memory", norm, CHECKED_REVERSE:
        "mem_flags::mem_threadgroup" => "mem_flags::mem_device",
        "race on threadgroup memory", "return parts[i]";
    "no barrier in front of the next step", product, CHECKED:
        "        threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next step stores\n" => "",
        "race on threadgroup memory: write", "rows[i] = a";
    "a read behind a buffer, of any size", norm, CHECKED:
        "own[tid];" => "own[tid + 1];",
        "read of 16 bytes at byte 4096 of buffer(1), which has 4096 bytes", "own[tid + 1]";
    "a read in front of a buffer", norm, CHECKED:
        "own[tid];" => "own[int(tid) - 1];",
        "at byte -16 of buffer(1)", "own[int(tid) - 1]";
    "an index behind a threadgroup array", norm, CHECKED:
        "parts[simd] = sum;" => "parts[simd + 4] = sum;",
        "index outside an array", "parts[simd + 4]";
    "a pointer behind a threadgroup array", norm, CHECKED:
        "parts[simd] = sum;" => "threadgroup float* end = parts; end[simd + 4] = sum;",
        "outside threadgroup memory", "end[simd + 4]";
    "an index behind a thread's array", norm, CHECKED:
        "float total = 0.0f;" => "float many[2] = {0.0f, 0.0f}; float total = many[args.parts - 2];",
        "index outside an array", "many[args.parts - 2]";
    "a 16-byte load from an odd place", norm, CHECKED:
        "own[tid];" => "*(const device float4*)((const device float*)own + tid * 4 % 64 + 1);",
        "misaligned", "% 64 + 1";
    "two threadgroups write one place", norm, CHECKED:
        "    y[row * (N / 4) + tid]" => "    y[tid]",
        "race on device memory: write of byte", "y[tid] =";
    "two threads write one place", norm, CHECKED:
        "    y[row * (N / 4) + tid]" => "    y[row * (N / 4) + tid / 2]",
        "race on device memory: write", "tid / 2";
    "a shift by the width", norm, CHECKED:
        "float total = 0.0f;" => "float total = float(1u << (args.parts * 8)) * 0.0f;",
        "shift amount", "1u <<";
    "a division by zero", norm, CHECKED:
        "float total = 0.0f;" => "float total = float(5u / (args.parts - 4)) * 0.0f;",
        "division by zero", "5u /";
    "a float that no integer holds", norm, CHECKED:
        "float total = 0.0f;" => "float total = float(int(v.x * 1e20f)) * 0.0f;",
        "does not fit", "1e20f";
}
