//! Every level against sums in f64.

use half::bf16;

use super::*;

/// Values in -1..1 from a seed.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn round(x: &[f32]) -> Vec<bf16> {
    x.iter().map(|&v| bf16::from_f32(v)).collect()
}

/// f32 sums of n products of numbers below 1.
fn tolerance(n: usize) -> f64 {
    1e-7 * (n as f64 + 1.0)
}

const LENGTHS: &[usize] = match cfg!(miri) {
    true => &[0, 1, 8, 9, 33],
    false => &[0, 1, 7, 8, 9, 31, 32, 33, 40, 71, 256, 1003],
};

#[test]
fn dot_products_agree_with_f64_at_every_level_and_length() {
    for simd in Simd::available() {
        for &n in LENGTHS {
            let (a, b) = (values(n, 1), values(n, 2));
            let short = round(&b);
            let want: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            let error = (f64::from(simd.dot(&a, &b)) - want).abs();
            assert!(error <= tolerance(n), "{simd:?}, {n}: {error}");
            let want: f64 =
                a.iter().zip(&short).map(|(&a, b)| f64::from(a) * f64::from(b.to_f32())).sum();
            let error = (f64::from(simd.dot_bf16(&a, &short)) - want).abs();
            assert!(error <= tolerance(n), "{simd:?}, {n} bf16: {error}");
        }
    }
}

#[test]
fn axpy_and_scale_agree_with_f64_and_touch_nothing_past_the_end() {
    for simd in Simd::available() {
        for &n in LENGTHS {
            let (x, y) = (values(n, 3), values(n + 1, 4));
            let short = round(&x);
            let (mut plain, mut wide, mut scaled) = (y.clone(), y.clone(), y.clone());
            simd.axpy(0.7, &x, &mut plain);
            simd.axpy_bf16(0.7, &short, &mut wide);
            simd.scale(0.7, &mut scaled[..n]);
            for i in 0..n {
                let want = |x: f32| f64::from(0.7f32) * f64::from(x) + f64::from(y[i]);
                assert!((f64::from(plain[i]) - want(x[i])).abs() <= 2e-7, "{simd:?} {n} {i}");
                let x = short[i].to_f32();
                assert!((f64::from(wide[i]) - want(x)).abs() <= 2e-7, "{simd:?} {n} {i}");
                assert_eq!(scaled[i], 0.7 * y[i]);
            }
            assert_eq!([plain[n], wide[n], scaled[n]], [y[n]; 3]);
        }
    }
}

#[test]
fn not_a_number_and_infinity_are_kept() {
    for simd in Simd::available() {
        for at in [0, 8, 36] {
            let mut a = values(37, 5);
            a[at] = f32::NAN;
            assert!(simd.dot(&a, &values(37, 6)).is_nan(), "{simd:?} {at}");
            a[at] = f32::INFINITY;
            assert_eq!(simd.dot(&a, &[1.0; 37]), f32::INFINITY, "{simd:?} {at}");
        }
    }
}

#[test]
fn instruction_sets_are_chosen_by_name_or_refused_with_what_can_be_used() {
    for simd in Simd::available() {
        assert_eq!(Simd::named(simd.level().name()), Ok(simd));
    }
    let error = Simd::named("avx1024").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`avx1024`") && text.contains("portable"), "{text}");
    for level in Level::ALL.iter().filter(|level| !level.is_available()) {
        let text = Simd::named(level.name()).unwrap_err().to_string();
        assert!(text.contains(&level.to_string()) && text.contains("portable"), "{text}");
    }
}

#[test]
fn the_best_instruction_set_is_the_last_one_of_the_machine() {
    assert_eq!(Simd::available().last(), Some(&Simd::detect()));
    assert_eq!(Simd::available()[0], Simd::portable());
}

/// An emulator that lacks what it is meant to show would let every test pass without it.
#[test]
fn instruction_sets_that_a_run_is_meant_for_are_there() {
    let expected = std::env::var("LILY_EXPECT_ISA").unwrap_or_default();
    for name in expected.split(',').filter(|name| !name.is_empty()) {
        let simd = Simd::named(name).unwrap_or_else(|error| panic!("{error}"));
        assert!(Simd::available().contains(&simd), "{name}");
    }
}
