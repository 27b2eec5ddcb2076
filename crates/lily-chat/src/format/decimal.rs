//! Numbers of a schema as they are written, and bounds and steps in the form in which the library
//! keeps them exactly: it has 64-bit floats.

use serde_json::{Map, Value, json};

/// The smallest number above 0 that a value may be where 0 is excluded: texts of smaller ones are long,
/// and some readers take them for 0.
const NEXT_TO_ZERO: f64 = 1e-15;
/// Neighbours of a step that are tried, on both sides.
const NEIGHBOURS: i32 = 8;
/// Most digits behind the point: the longest text of a float has about so many.
const MOST_PLACES: u32 = 400;
/// Most multiples that are listed in one place, and in all of a schema.
const MOST_LISTED: i128 = 256;
pub(crate) const ALL_LISTED: i128 = 4096;
/// Multiples up to here are counted by floats one by one.
const COUNTED: i128 = 1 << 52;

/// `digits` / 10^`places`, with as few places as possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub digits: i128,
    pub places: u32,
}

impl Decimal {
    /// The number that a float is written as; `None` for one with very many digits.
    pub fn of(value: f64) -> Option<Self> {
        let text = value.to_string();
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Self { digits, places: u32::try_from(fraction.len()).ok()? })
    }

    /// The same with more places.
    fn digits_at(self, places: u32) -> Option<i128> {
        self.digits.checked_mul(10_i128.checked_pow(places.checked_sub(self.places)?)?)
    }

    fn float(self) -> Option<f64> {
        format!("{}e-{}", self.digits, self.places).parse().ok()
    }
}

/// Writes the bounds and the step of a schema so that the library keeps them.
///
/// An excluded bound on the side of 0 becomes its neighbour: the library lets a whole one through if the
/// other bound is less than one away. A few multiples are listed, and for many the bounds are moved between
/// two of them, as the library divides floats to see whether there is one.
///
/// Of numbers for lists so many are `left`.
pub(crate) fn write_exactly(schema: &mut Map<String, Value>, left: &mut i128) {
    let lower = bound(schema, "minimum", "exclusiveMinimum", f64::max, |x| match x {
        0.0 => NEXT_TO_ZERO,
        x => x.next_up(),
    });
    let upper = bound(schema, "maximum", "exclusiveMaximum", f64::min, |x| match x {
        0.0 => -NEXT_TO_ZERO,
        x => x.next_down(),
    });
    let Some(step) = schema.get("multipleOf").and_then(Value::as_f64).and_then(Decimal::of) else {
        return;
    };
    if let Some(float) = as_read(step) {
        schema.insert("multipleOf".into(), json!(float));
    }
    if let (Some(lower), Some(upper)) = (lower, upper)
        && let Some(numbers) = multiples(lower, upper, step)
    {
        write_multiples(schema, numbers, step, left);
    }
}

/// Takes both forms of a bound: what it includes. One that excludes a number on the side of 0 is written
/// anew.
fn bound(
    schema: &mut Map<String, Value>,
    including: &str,
    excluding: &str,
    narrower: fn(f64, f64) -> f64,
    inside: fn(f64) -> f64,
) -> Option<f64> {
    let number = |word: &str| schema.get(word).and_then(Value::as_f64);
    let included = number(including);
    let excluded = match schema.get(excluding) {
        // In old drafts it is a switch.
        Some(Value::Bool(true)) => included,
        _ => number(excluding),
    };
    let Some(excluded) = excluded else { return included };
    let found = narrower(included.unwrap_or(inside(excluded)), inside(excluded));
    if inside(excluded).abs() > excluded.abs() {
        schema.remove(excluding);
        schema.insert(including.into(), json!(found));
    }
    Some(found)
}

/// The first and the last whole number whose product with a step is between two bounds.
fn multiples(lower: f64, upper: f64, step: Decimal) -> Option<(i128, i128)> {
    let (lower, upper) = (Decimal::of(lower)?, Decimal::of(upper)?);
    let places = lower.places.max(upper.places).max(step.places);
    let divisor = step.digits_at(places)?;
    let first = -(-lower.digits_at(places)?).div_euclid(divisor);
    let last = upper.digits_at(places)?.div_euclid(divisor);
    (first <= last && first.abs().max(last.abs()) <= COUNTED).then_some((first, last))
}

fn write_multiples(
    schema: &mut Map<String, Value>,
    (first, last): (i128, i128),
    step: Decimal,
    left: &mut i128,
) {
    let one = 10_i128.checked_pow(step.places);
    let is_whole = |number: i128| one.is_some_and(|one| number * step.digits % one == 0);
    let is_kept = |number: &i128| match schema.get("type").and_then(Value::as_str) {
        Some("integer") => is_whole(*number),
        _ => true,
    };
    let is_number = schema.get("type").is_some_and(|name| name == "number" || name == "integer");
    let has_list = schema.contains_key("enum") || schema.contains_key("const");
    let words = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    let count = last - first + 1;
    if is_number && !has_list && count <= MOST_LISTED.min(*left) {
        *left -= count;
        let value = |number| Decimal { digits: number * step.digits, ..step }.float();
        let all: Vec<f64> = (first..=last).filter(is_kept).filter_map(value).collect();
        if !all.is_empty() {
            words.iter().chain(&["multipleOf"]).for_each(|word| drop(schema.remove(*word)));
            schema.insert("enum".into(), json!(all));
        }
        return;
    }
    // Half a step outside of them.
    let halves = |number: i128| {
        Decimal { digits: number * step.digits * 5, places: step.places + 1 }.float()
    };
    if let (Some(lower), Some(upper)) = (halves(2 * first - 1), halves(2 * last + 1)) {
        words.iter().for_each(|word| drop(schema.remove(*word)));
        schema.insert("minimum".into(), json!(lower));
        schema.insert("maximum".into(), json!(upper));
    }
}

/// Whether the library can keep a step: it does not reach every one by its way.
pub(crate) fn is_kept(step: f64) -> bool {
    Decimal::of(step).and_then(as_read).is_some()
}

/// The float that the library reads as a step: it multiplies it by ten until it is whole.
fn as_read(step: Decimal) -> Option<f64> {
    let exact = step.float()?;
    let reads = |float: &f64| {
        let (mut float, mut places) = (*float, 0);
        while float.fract() != 0.0 && places < MOST_PLACES {
            (float, places) = (float * 10.0, places + 1);
        }
        float as i128 == step.digits && places == step.places
    };
    let neighbour = |n: i32| f64::from_bits(exact.to_bits().wrapping_add_signed(n.into()));
    let order = (0..=NEIGHBOURS).flat_map(|n| [n, -n]);
    order.map(neighbour).find(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(schema: Value) -> Value {
        let mut schema = schema.as_object().unwrap().clone();
        let mut left = MOST_LISTED;
        write_exactly(&mut schema, &mut left);
        schema.into()
    }

    #[test]
    fn excluded_bounds_on_the_side_of_zero_become_their_neighbours() {
        for (schema, written) in [
            (json!({ "exclusiveMinimum": 0 }), json!({ "minimum": 1e-15 })),
            (json!({ "exclusiveMaximum": 0 }), json!({ "maximum": -1e-15 })),
            (json!({ "exclusiveMinimum": 3 }), json!({ "minimum": 3.0000000000000004 })),
            (
                json!({ "minimum": 3, "exclusiveMinimum": true }),
                json!({ "minimum": 3.0000000000000004 }),
            ),
            // On the other side the library excludes it.
            (json!({ "exclusiveMaximum": 3 }), json!({ "exclusiveMaximum": 3 })),
            (json!({ "exclusiveMinimum": -3 }), json!({ "exclusiveMinimum": -3 })),
            (json!({ "minimum": 5, "exclusiveMinimum": 3 }), json!({ "minimum": 5.0 })),
            (json!({ "minimum": 3, "maximum": 5 }), json!({ "minimum": 3, "maximum": 5 })),
        ] {
            assert_eq!(exact(schema.clone()), written, "{schema}");
        }
    }

    #[test]
    fn steps_are_read_as_they_are_written() {
        let common = [1.0, 2.5, 10.0, 0.5, 0.25, 0.125, 0.1, 0.05, 0.01, 0.001, 0.0001, 0.07, 0.3];
        for float in common {
            let step = Decimal::of(float).unwrap();
            assert!(as_read(step).is_some(), "{float}");
            assert!(is_kept(float));
        }
        assert!(!is_kept(0.53) && !is_kept(1e-300));
    }

    #[test]
    fn multiples_are_listed_or_lie_between_bounds_that_are_none() {
        let with = |name: &str, lower: f64, upper: f64, step: f64| json!({ "type": name, "minimum": lower, "maximum": upper, "multipleOf": step });
        for (schema, written) in [
            (with("number", 0.3, 0.3, 0.1), json!({ "type": "number", "enum": [0.3] })),
            (with("number", 0.25, 0.45, 0.1), json!({ "type": "number", "enum": [0.3, 0.4] })),
            (
                with("number", -0.1, 0.21, 0.07),
                json!({ "type": "number", "enum": [-0.07, 0.0, 0.07, 0.14, 0.21] }),
            ),
            (with("integer", 1.0, 3.0, 0.5), json!({ "type": "integer", "enum": [1.0, 2.0, 3.0] })),
            (with("number", 1.0, 1000.0, 3.0), with("number", 1.5, 1000.5, 3.0)),
            (with("string", 0.3, 0.5, 0.1), with("string", 0.25, 0.55, 0.1)),
            (with("number", 0.31, 0.39, 0.1), with("number", 0.31, 0.39, 0.1)),
        ] {
            assert_eq!(exact(schema.clone()), written, "{schema}");
        }
    }
}
