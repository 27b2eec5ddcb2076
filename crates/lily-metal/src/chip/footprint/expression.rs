//! Integer expressions of kernel texts.

use std::collections::HashMap;

/// Constants by name, with their text.
pub(super) type Constants = HashMap<String, String>;

/// Depth of constants in constants at which a text must be wrong.
const DEEPEST: u32 = 64;

/// Operators of two characters.
const LONG: [&str; 8] = ["<<", ">>", "<=", ">=", "==", "!=", "&&", "||"];

/// Words, numbers and signs of a text.
pub(super) fn words(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len())
        } else if LONG.iter().any(|long| rest.starts_with(long)) {
            2
        } else {
            first.len_utf8()
        };
        let (word, behind) = rest.split_at(length);
        out.push(word);
        rest = behind.trim_start();
    }
    out
}

/// The value of an expression.
pub(super) fn evaluate(tokens: &[&str], constants: &Constants) -> Result<i64, String> {
    within(tokens, constants, 0)
}

fn within(tokens: &[&str], constants: &Constants, depth: u32) -> Result<i64, String> {
    if depth > DEEPEST {
        return Err("constants that name one another".into());
    }
    let mut parser = Parser { tokens, at: 0, constants, depth };
    let value = parser.choice()?;
    if parser.at < tokens.len() {
        return Err(format!("`{}` is no integer constant", tokens.join(" ")));
    }
    Ok(value)
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    at: usize,
    constants: &'a Constants,
    depth: u32,
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.peek() == wanted;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        if self.take(wanted) {
            return Ok(());
        }
        Err(format!("expected `{wanted}` in `{}`", self.tokens.join(" ")))
    }

    /// `a ? b : c`
    fn choice(&mut self) -> Result<i64, String> {
        let condition = self.binary(1)?;
        if !self.take("?") {
            return Ok(condition);
        }
        let yes = self.choice()?;
        self.expect(":")?;
        let no = self.choice()?;
        Ok(if condition != 0 { yes } else { no })
    }

    /// Operators that bind at least as strongly as `least`.
    fn binary(&mut self, least: u32) -> Result<i64, String> {
        let mut left = self.unary()?;
        loop {
            let operator = self.peek().to_owned();
            let Some(strength) = strength(&operator).filter(|s| *s >= least) else {
                return Ok(left);
            };
            self.at += 1;
            let right = self.binary(strength + 1)?;
            left = apply(&operator, left, right)
                .ok_or_else(|| format!("{left} {operator} {right} has no value"))?;
        }
    }

    fn unary(&mut self) -> Result<i64, String> {
        if self.take("-") {
            return Ok(-self.unary()?);
        }
        if self.take("!") {
            return Ok(i64::from(self.unary()? == 0));
        }
        if self.take("(") {
            let value = self.choice()?;
            self.expect(")")?;
            return Ok(value);
        }
        let word = self.peek().to_owned();
        self.at += 1;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return number(&word).ok_or_else(|| format!("`{word}` is no integer"));
        }
        if self.peek() == "(" && matches!(&*word, "uint" | "int" | "min" | "max") {
            return self.call(&word);
        }
        let value = self.constants.get(&word).ok_or_else(|| format!("`{word}` is no constant"))?;
        within(&words(value), self.constants, self.depth + 1)
    }

    fn call(&mut self, function: &str) -> Result<i64, String> {
        self.expect("(")?;
        let first = self.choice()?;
        let value = match function {
            "uint" | "int" => first,
            _ => {
                self.expect(",")?;
                let second = self.choice()?;
                if function == "min" { first.min(second) } else { first.max(second) }
            }
        };
        self.expect(")")?;
        Ok(value)
    }
}

fn number(word: &str) -> Option<i64> {
    let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn strength(operator: &str) -> Option<u32> {
    Some(match operator {
        "||" => 1,
        "&&" => 2,
        "|" => 3,
        "^" => 4,
        "&" => 5,
        "==" | "!=" => 6,
        "<" | ">" | "<=" | ">=" => 7,
        "<<" | ">>" => 8,
        "+" | "-" => 9,
        "*" | "/" | "%" => 10,
        _ => return None,
    })
}

fn apply(operator: &str, a: i64, b: i64) -> Option<i64> {
    let shift = || u32::try_from(b).ok();
    match operator {
        "||" => Some(i64::from(a != 0 || b != 0)),
        "&&" => Some(i64::from(a != 0 && b != 0)),
        "|" => Some(a | b),
        "^" => Some(a ^ b),
        "&" => Some(a & b),
        "==" => Some(i64::from(a == b)),
        "!=" => Some(i64::from(a != b)),
        "<" => Some(i64::from(a < b)),
        ">" => Some(i64::from(a > b)),
        "<=" => Some(i64::from(a <= b)),
        ">=" => Some(i64::from(a >= b)),
        "<<" => a.checked_shl(shift()?),
        ">>" => a.checked_shr(shift()?),
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" => a.checked_div(b),
        "%" => a.checked_rem(b),
        _ => None,
    }
}
