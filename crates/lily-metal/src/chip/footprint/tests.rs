use super::*;

fn source(text: &str) -> Source {
    Source::metal(text, "f")
}

fn kernel(body: &str) -> Source {
    source(&format!(
        "#define THREADS 64\nconstant constexpr uint ROWS = 4 * 8;  // rows\n\
         [[kernel, max_total_threads_per_threadgroup(THREADS * 2)]] void other() {{\n    threadgroup float x[9];\n}}\n\
         [[kernel, max_total_threads_per_threadgroup(THREADS)]] void f(\n    device float* out [[buffer(0)]])\n{{\n{body}\n}}\n\
         [[kernel]] void behind() {{ threadgroup uint4 x[1000]; }}\n"
    ))
}

#[test]
fn arrays_of_the_function_are_summed_and_its_bound_is_read() {
    let body = "    threadgroup float4 a[ROWS];\n    threadgroup bfloat b[2][ROWS + 1];  // odd\n    \
                threadgroup float* p = (threadgroup float*)a;\n    if (true) { threadgroup uint c[1]; }";
    let found = Footprint::of(&kernel(body)).unwrap();
    assert_eq!(found, Footprint { threadgroup_bytes: 512 + 144 + 16, max_threads: Some(64) });
    let found = Footprint::of(&kernel("")).unwrap();
    assert_eq!(found, Footprint { threadgroup_bytes: 0, max_threads: Some(64) });
}

#[test]
fn branches_of_other_compilers_do_not_count() {
    let text = "#define SWITCH 0\n#ifdef __METAL_CUDA__\nconstant constexpr uint N = 7;\n#else\n\
                constant constexpr uint N = 5;\n#endif\n#if SWITCH == 1 && defined(N)\n#define M 1\n\
                #elif !defined(SWITCH)\n#define M 2\n#else\n#define M 3\n#endif\n#ifndef SWITCH\n#undef M\n#endif\n\
                [[kernel]] void f() { threadgroup uint4 x[N]; threadgroup uint4 y[M]; }";
    let found = Footprint::of(&source(text)).unwrap();
    assert_eq!(found, Footprint { threadgroup_bytes: 16 * 8, max_threads: None });
}

#[test]
fn expressions_have_the_values_of_c() {
    let constants =
        Constants::from([("A".into(), "(B + 1) / 2".into()), ("B".into(), "9u".into())]);
    for (text, value) in [
        ("A", 5),
        ("1 + 2 * 3 - 4 / 2 % 3", 5),
        ("10 - 4 - 3", 3),
        ("A > 4 ? B < 3 ? 1 : 2 : 3", 2),
        ("(1 << 4 | 3) & ~0x0", -1),
        ("0x1f >> 2 == 7 && !0", 1),
        ("max(A, B) * min(2, uint(3))", 18),
        ("-3 + 4", 1),
    ] {
        match value {
            -1 => assert!(evaluate(&words(text), &constants).is_err(), "{text}"),
            _ => assert_eq!(evaluate(&words(text), &constants), Ok(value), "{text}"),
        }
    }
    let looped = Constants::from([("A".into(), "B".into()), ("B".into(), "A".into())]);
    for (text, constants) in [
        ("A", &looped),
        ("C", &constants),
        ("1 / 0", &constants),
        ("1.5", &constants),
        ("(1", &constants),
        ("", &constants),
    ] {
        assert!(evaluate(&words(text), constants).is_err(), "{text}");
    }
}

#[test]
fn what_is_not_understood_is_an_error_that_names_the_function() {
    for (body, reason) in [
        ("threadgroup float a[n];", "`n` is no constant"),
        ("threadgroup Strange a[4];", "the size of `Strange` is not known here"),
        ("threadgroup float a;", "`float a` is no array"),
        ("threadgroup float a[-1];", "an array of -4 bytes"),
    ] {
        let error = Footprint::of(&kernel(body)).unwrap_err().to_string();
        assert_eq!(error, format!("function `f`: {reason}"));
    }
    assert!(Footprint::of(&Source::metal("void g() {}", "f")).is_err());
}

#[test]
fn a_launch_beyond_a_limit_is_refused_with_both_numbers() {
    let fits = Footprint { threadgroup_bytes: 32768, max_threads: Some(1024) };
    assert_eq!(fits.check(1024), Ok(()));
    assert_eq!(fits.check(32), Ok(()));
    for (footprint, threads, text) in [
        (fits, 0, "0 threads, need a multiple of 32"),
        (fits, 48, "48 threads, need a multiple of 32"),
        (fits, 1056, "1056 threads, need at most 1024"),
        (
            Footprint { max_threads: Some(128), ..fits },
            160,
            "160 threads, and the function promises 128",
        ),
        (
            Footprint { max_threads: None, ..fits },
            32,
            "32 threads, and the function promises no bound",
        ),
        (
            Footprint { threadgroup_bytes: 32784, ..fits },
            32,
            "32784 bytes of threadgroup memory, need at most 32768",
        ),
    ] {
        assert_eq!(footprint.check(threads), Err(text.into()));
    }
}
