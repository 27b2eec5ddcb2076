//! Patterns of JSON schema, which are expressions of ECMA-262, in the words of Rust's.
//!
//! A digit is one of ten here, a `.` takes no line end, brackets and `&` in a class are themselves, and
//! names of groups mean nothing. What a text must also be (look-ahead behind `^`) becomes an expression
//! of its own. Differences that are left: `.` takes U+2028 and U+2029, as excluding them would cost
//! each mask a walk over the vocabulary; a class without `"` or `\\` does not take U+001F.

use std::iter::Peekable;
use std::str::Chars;

use regex_syntax::hir::{Class, Hir, HirKind};

/// Digits, letters of words and white space, as the inside of a class.
const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str = r"\t\n\x0B\x0C\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}";
/// Any text.
const ANY: &str = "(?s:.*)";
/// The rest of a text behind its first line.
const OTHER_LINES: &str = r"(?:[\r\n](?s:.*))?";
/// Characters of the numbers of a repetition, its closing brace included.
const LONGEST_COUNT: usize = 24;
/// The last of the characters that JSON has as escapes only.
const LAST_CONTROL: char = '\x1f';
/// Why a pattern cannot be kept.
const LOOKS: &str = "it has look-around in a place or of a form that is not supported";
const REFERS: &str = "it refers back to a group, which is not supported";
const BORDER: &str = "it has `\\b` or `\\B`, which is not supported";
const ESCAPE: &str = "it has an escape that means nothing";
const OPEN_CLASS: &str = "it has a class without an end";
const ORDER: &str = "it has a range whose end is in front of its beginning";
const FLAGS: &str = "it has flags other than `i`, which are not supported";

/// What zod writes for addresses of mail, and the same without look-ahead: a bound of its length beside
/// that would be too much work.
const ZOD_MAIL: &str = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
const PLAIN_MAIL: &str = r"^([A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";

/// An expression with its anchors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expression {
    alternatives: Vec<Alternative>,
    /// There are anchors elsewhere.
    has_inner_anchors: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Alternative {
    from_start: bool,
    body: String,
    to_end: bool,
}

impl Expression {
    /// For texts in which it is found.
    pub fn search(&self) -> String {
        let one = |one: &Alternative| {
            let (start, end) = (anchor(one.from_start, "^"), anchor(one.to_end, "$"));
            format!("{start}{}{end}", one.body)
        };
        self.alternatives.iter().map(one).collect::<Vec<_>>().join("|")
    }

    /// The same for whole texts; `None` if there are anchors inside of it.
    pub fn whole(&self) -> Option<String> {
        if self.has_inner_anchors {
            return None;
        }
        let one = |one: &Alternative| {
            let (start, end) = (anchor(!one.from_start, ANY), anchor(!one.to_end, ANY));
            format!("{start}(?:{}){end}", one.body)
        };
        let all: Vec<String> = self.alternatives.iter().map(one).collect();
        Some(format!("(?:{})", all.join("|")))
    }
}

fn anchor(is_there: bool, text: &str) -> &str {
    if is_there { text } else { "" }
}

/// The expressions that a text must match, all of them, to match a pattern.
///
/// # Errors
/// Why it cannot be kept. What is wrong with brackets and numbers is found by whoever reads the expression.
pub(crate) fn expressions(pattern: &str) -> Result<Vec<Expression>, &'static str> {
    let mut all = Vec::new();
    let pattern = if pattern == ZOD_MAIL { PLAIN_MAIL } else { pattern };
    let mut rest = pattern;
    if let Some(mut behind) = pattern.strip_prefix('^') {
        while let Some((is_wanted, inside, after)) = look_ahead(behind) {
            match is_wanted {
                true => all.push(translated(&format!("^(?:{inside})"))?),
                false => all.push(excluding(inside)?),
            }
            behind = after;
        }
        if !all.is_empty() {
            rest = behind;
        }
    }
    let mut last = translated(rest)?;
    if !all.is_empty() {
        // What comes behind a look-ahead is one alternative: its anchor is that of all.
        let [only] = &mut last.alternatives[..] else { return Err(LOOKS) };
        only.from_start = true;
    }
    all.push(last);
    Ok(all)
}

/// A look-ahead at the start of an expression: whether it must match, what is in it, and what comes behind it.
fn look_ahead(text: &str) -> Option<(bool, &str, &str)> {
    let is_wanted = text.starts_with("(?=");
    let inside = text.strip_prefix("(?=").or_else(|| text.strip_prefix("(?!"))?;
    let (mut escaped, mut in_class, mut depth) = (false, false, 0usize);
    for (at, c) in inside.char_indices() {
        match c {
            _ if std::mem::take(&mut escaped) => {}
            '\\' => escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' if depth == 0 => return Some((is_wanted, &inside[..at], &inside[at + 1..])),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// An expression for texts that begin with no match of a simple one: `$`, a character or class, several
/// of it up to the end, and `.*` with one or two characters behind it.
fn excluding(inside: &str) -> Result<Expression, &'static str> {
    let inside = inside.strip_prefix('^').unwrap_or(inside);
    if inside == "$" {
        return whole("(?s:.+)".into());
    }
    let (is_anywhere, atoms) = match inside.strip_prefix(".*") {
        Some(atoms) => (true, atoms),
        None => (false, inside),
    };
    let (atoms, is_all) = match atoms.strip_suffix("*$") {
        Some(atoms) => (atoms, true),
        None => (atoms, false),
    };
    let mut reader = Reader::new(atoms);
    let mut found = Vec::new();
    while let Some(c) = reader.chars.next() {
        found.push(reader.atom(c)?.ok_or(LOOKS)?);
    }
    whole(match (is_anywhere, &found[..]) {
        (false, [one]) if is_all => format!("{ANY}{}{ANY}", quotable(format!("[^{one}]"))),
        _ if is_all => return Err(LOOKS),
        (false, [one]) => format!("(?:{}{ANY})?", quotable(format!("[^{one}]"))),
        (true, [one]) => format!(r"[^{one}\r\n]*{OTHER_LINES}"),
        (true, [one, two]) if one == two => {
            format!(r"(?:[^{one}\r\n]|{one}[^{one}\r\n])*{one}?{OTHER_LINES}")
        }
        (true, [one, two]) if is_single(one) && is_single(two) => {
            format!(r"(?:[^{one}\r\n]|{one}+[^{one}{two}\r\n])*{one}*{OTHER_LINES}")
        }
        _ => return Err(LOOKS),
    })
}

/// Whether a class is a character.
fn is_single(class: &str) -> bool {
    !class.starts_with('[')
}

fn whole(body: String) -> Result<Expression, &'static str> {
    let only = Alternative { from_start: true, body, to_end: true };
    Ok(Expression { alternatives: vec![only], has_inner_anchors: false })
}

fn translated(pattern: &str) -> Result<Expression, &'static str> {
    let mut reader = Reader::new(pattern);
    reader.read()?;
    Ok(Expression { alternatives: reader.done, has_inner_anchors: reader.has_inner_anchors })
}

/// Reads an expression of ECMA-262.
struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    done: Vec<Alternative>,
    has_inner_anchors: bool,
    /// The numbers of a repetition are being read.
    in_count: bool,
}

impl<'a> Reader<'a> {
    fn new(pattern: &'a str) -> Self {
        Self {
            chars: pattern.chars().peekable(),
            done: Vec::new(),
            has_inner_anchors: false,
            in_count: false,
        }
    }

    fn read(&mut self) -> Result<(), &'static str> {
        let mut now = Alternative::default();
        let mut depth = 0usize;
        while let Some(c) = self.chars.next() {
            match c {
                '|' if depth == 0 => self.done.push(std::mem::take(&mut now)),
                '|' => now.body.push('|'),
                '^' if depth == 0 && now.body.is_empty() => now.from_start = true,
                '$' if depth == 0 && matches!(self.chars.peek(), None | Some('|')) => {
                    now.to_end = true;
                }
                '^' | '$' => {
                    self.has_inner_anchors = true;
                    now.body.push(c);
                }
                '(' => {
                    depth += 1;
                    now.body.push_str(self.group()?);
                }
                ')' => {
                    depth = depth.saturating_sub(1);
                    now.body.push(')');
                }
                '*' | '+' | '?' => now.body.push(c),
                '{' if self.is_count() => {
                    self.in_count = true;
                    now.body.push('{');
                }
                '}' if std::mem::take(&mut self.in_count) => now.body.push('}'),
                '.' => now.body.push_str(r"[^\r\n]"),
                c => match self.atom(c)? {
                    Some(class) => now.body.push_str(&quotable(class)),
                    None => return Err(LOOKS),
                },
            }
        }
        self.done.push(now);
        Ok(())
    }

    /// The beginning of a group behind its bracket.
    fn group(&mut self) -> Result<&'static str, &'static str> {
        if self.chars.next_if_eq(&'?').is_none() {
            return Ok("(?:");
        }
        match self.chars.next() {
            Some(':') => Ok("(?:"),
            Some('=' | '!') => Err(LOOKS),
            // As Python writes it.
            Some('P') if self.chars.peek() == Some(&'<') => self.name(),
            Some('<') if matches!(self.chars.peek(), Some('=' | '!')) => Err(LOOKS),
            Some('<') => self.name(),
            Some('i') if self.chars.next_if_eq(&':').is_some() => Ok("(?i:"),
            Some('i') if self.chars.peek() == Some(&')') => Ok("(?i"),
            _ => Err(FLAGS),
        }
    }

    /// Leaves out the name of a group.
    fn name(&mut self) -> Result<&'static str, &'static str> {
        self.chars.by_ref().find(|&c| c == '>').map(|_| "(?:").ok_or(ESCAPE)
    }

    /// Whether numbers for a repetition follow: a brace without them is a character.
    fn is_count(&self) -> bool {
        let ahead: String = self.chars.clone().take(LONGEST_COUNT).collect();
        let Some((numbers, _)) = ahead.split_once('}') else { return false };
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let (least, most) = numbers.split_once(',').unwrap_or((numbers, ""));
        !least.is_empty() && is_number(least) && is_number(most)
    }

    /// A character or a class that begins with `c`, as a class or as the inside of one; `None` if it is none.
    fn atom(&mut self, c: char) -> Result<Option<String>, &'static str> {
        Ok(Some(match c {
            '\\' => match self.escape(false)? {
                Atom::One(c) => literal(c),
                Atom::Class(class) => class,
            },
            '[' => self.class()?,
            '.' | '*' | '+' | '?' | '(' | ')' | '|' | '^' | '$' => return Ok(None),
            c => literal(c),
        }))
    }

    fn class(&mut self) -> Result<String, &'static str> {
        let is_negated = self.chars.next_if_eq(&'^').is_some();
        let mut inside = String::new();
        loop {
            let first = match self.chars.next().ok_or(OPEN_CLASS)? {
                ']' => break,
                '\\' => self.escape(true)?,
                c => Atom::One(c),
            };
            let Atom::One(first) = first else {
                inside.push_str(&first.text());
                continue;
            };
            // A range, unless the class ends behind the line or has a class there.
            let mut ahead = self.chars.clone();
            if ahead.next() != Some('-') || matches!(ahead.peek(), None | Some(']')) {
                inside.push_str(&literal(first));
                continue;
            }
            self.chars.next();
            let last = match self.chars.next().ok_or(OPEN_CLASS)? {
                '\\' => self.escape(true)?,
                c => Atom::One(c),
            };
            match last {
                Atom::One(last) if last < first => return Err(ORDER),
                Atom::One(last) => {
                    inside.push_str(&format!("{}-{}", literal(first), literal(last)));
                }
                class => inside.push_str(&format!(r"{}\-{}", literal(first), class.text())),
            }
        }
        Ok(match (inside.is_empty(), is_negated) {
            (true, true) => r"[\s\S]".into(),
            (true, false) => r"[^\s\S]".into(),
            (_, true) => format!("[^{inside}]"),
            (_, false) => format!("[{inside}]"),
        })
    }

    /// What stands behind a backslash.
    fn escape(&mut self, in_class: bool) -> Result<Atom, &'static str> {
        let class = |inside: &str| Ok(Atom::Class(format!("[{inside}]")));
        let others = |inside: &str| Ok(Atom::Class(format!("[^{inside}]")));
        let one = match self.chars.next().ok_or(ESCAPE)? {
            'd' => return class(DIGIT),
            'D' => return others(DIGIT),
            'w' => return class(WORD),
            'W' => return others(WORD),
            's' => return class(SPACE),
            'S' => return others(SPACE),
            kind @ ('p' | 'P') if self.chars.next_if_eq(&'{').is_some() => {
                let name: String = self.chars.by_ref().take_while(|&c| c != '}').collect();
                return Ok(Atom::Class(format!("[\\{kind}{{{name}}}]")));
            }
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'v' => '\x0B',
            'f' => '\x0C',
            '0' if !self.chars.peek().is_some_and(char::is_ascii_digit) => '\0',
            'b' if in_class => '\x08',
            'b' | 'B' => return Err(BORDER),
            '1'..='9' | 'k' => return Err(REFERS),
            'c' => match self.chars.next() {
                Some(c) if c.is_ascii_alphabetic() => char::from(c as u8 % 32),
                _ => return Err(ESCAPE),
            },
            'x' => char::from_u32(self.number(2)?).ok_or(ESCAPE)?,
            'u' => self.unicode()?,
            c if c.is_ascii_alphanumeric() => return Err(ESCAPE),
            c => c,
        };
        Ok(Atom::One(one))
    }

    /// A character by its number, or by those of its halves.
    fn unicode(&mut self) -> Result<char, &'static str> {
        if self.chars.next_if_eq(&'{').is_some() {
            let digits: String = self.chars.by_ref().take_while(|&c| c != '}').collect();
            return u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32).ok_or(ESCAPE);
        }
        let mut number = self.number(4)?;
        if (0xd800..0xdc00).contains(&number) {
            if !(self.chars.next() == Some('\\') && self.chars.next() == Some('u')) {
                return Err(ESCAPE);
            }
            let low =
                self.number(4)?.checked_sub(0xdc00).filter(|&low| low < 0x400).ok_or(ESCAPE)?;
            number = 0x10000 + ((number - 0xd800) << 10) + low;
        }
        char::from_u32(number).ok_or(ESCAPE)
    }

    fn number(&mut self, digits: usize) -> Result<u32, &'static str> {
        (0..digits).try_fold(0, |number, _| {
            let digit = self.chars.next().and_then(|c| c.to_digit(16)).ok_or(ESCAPE)?;
            Ok(number * 16 + digit)
        })
    }
}

/// What an escape or a place in a class stands for.
enum Atom {
    One(char),
    /// A class in its brackets.
    Class(String),
}

impl Atom {
    fn text(&self) -> String {
        match self {
            Atom::One(c) => literal(*c),
            Atom::Class(class) => class.clone(),
        }
    }
}

/// A class in the form in which the library keeps it inside of JSON: of one that has all control characters
/// it takes the escapes for `"` and `\` too, so that one which lacks either must not have them all.
fn quotable(class: String) -> String {
    if is_single(&class) {
        return class;
    }
    let Ok(HirKind::Class(Class::Unicode(found))) = regex_syntax::parse(&class).map(Hir::into_kind)
    else {
        return class;
    };
    let has = |wanted: char| found.iter().any(|r| (r.start()..=r.end()).contains(&wanted));
    let has_quotes = has('"') && has('\\');
    if has(LAST_CONTROL) && !has_quotes { format!(r"[{class}&&[^\x1f]]") } else { class }
}

/// A character as itself, also in a class.
fn literal(c: char) -> String {
    match c {
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$'
        | '#' | '&' | '-' | '~' => format!("\\{c}"),
        c if c.is_control() => format!("\\x{{{:x}}}", u32::from(c)),
        c => c.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::RegexBuilder;

    /// Whether a pattern is found in a text, by the expressions for search and by those for whole texts.
    fn matches(pattern: &str, text: &str) -> bool {
        let all = expressions(pattern).unwrap_or_else(|reason| panic!("{pattern}: {reason}"));
        let found = |one: &Expression| {
            let mut builder = RegexBuilder::new();
            let search = builder.mk_regex_for_serach(&one.search()).unwrap();
            let is_found = builder.to_regex(search).is_match(text);
            if let Some(whole) = one.whole() {
                let mut builder = RegexBuilder::new();
                let whole = builder.mk_regex(&whole).unwrap();
                assert_eq!(builder.to_regex(whole).is_match(text), is_found, "{pattern} {text:?}");
            }
            is_found
        };
        all.iter().all(found)
    }

    fn tells_apart(pattern: &str, good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(matches(pattern, text), "{pattern} {text:?}");
        }
        for text in bad {
            assert!(!matches(pattern, text), "{pattern} {text:?}");
        }
    }

    #[test]
    fn patterns_mean_what_they_mean_in_ecma_262() {
        for (pattern, good, bad) in [
            (r"^\d+$", &["12"][..], &["١٢", ""][..]),
            (r"^\w$", &["a", "_", "0"], &["é"]),
            (r"^\s$", &[" ", "\u{feff}", "\u{a0}"], &["\u{85}", "x"]),
            (r"^.$", &["a", "é"], &["\n", "\r", ""]),
            (r"^\/a\-b\@\<\>$", &["/a-b@<>"], &["a"]),
            ("a|^b|c$", &["xax", "bx", "xc"], &["xb", "cx"]),
            ("^(?:a|b)$|^c$", &["a", "c"], &["ac"]),
            ("^a$|^b$", &["a", "b"], &["ab", "ax"]),
            (r"^(?<year>\d{4})(?<stop>-)x$", &["2024-x"], &["2024-"]),
            (r"^(?P<n>a)$", &["a"], &["P"]),
            (r"^[[a&&b~~]+$", &["[", "a&b~"], &["]", "c"]),
            (r"^[\w.\-+]+$", &["a.-+"], &["é", "a b"]),
            (r"^[a\d-z]+$", &["a1-z"], &["b"]),
            (r"^[\b]$", &["\u{8}"], &["b"]),
            (r"^[^]$", &["\n", "a"], &[""]),
            (r"^{a}{2}$", &["{a}}"], &["a"]),
            (r"^\\{3}\{2}$", &[r"\\\{2}"], &[r"\{3}{2}"]),
            (r"^C:\\{1,2}\w$", &[r"C:\x", r"C:\\x"], &[r"C:\\\x"]),
            (r"^a{2,}b{1,2}$", &["aab", "aaabb"], &["ab"]),
            (r"^\u0041\x42\u{1F600}\ud83d\ude00\cJ\0$", &["AB😀😀\n\0"], &["AB"]),
            (r"^\p{Lu}\P{Lu}[\p{Nd}x]$", &["Ää1"], &["ää1"]),
            ("(?i:ab)c", &["ABc", "xabc"], &["ABC"]),
            ("", &["", "x"], &[]),
            (r"^(a$|b)", &["a", "bx"], &["ax"]),
            ("é/\n", &["é/\n"], &["e"]),
        ] {
            tells_apart(pattern, good, bad);
        }
    }

    #[test]
    fn look_ahead_behind_the_start_is_an_expression_of_its_own() {
        // Nearly as zod writes it for addresses of mail.
        let mail = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,5}$";
        for (pattern, good, bad) in [
            (
                ZOD_MAIL,
                &["a.b@c.de", "a@b.co"][..],
                &[".a@b.co", "a..b@c.de", "a@b..co", "a.@b.co"][..],
            ),
            (mail, &["a.b@c.de", "a@b.co"], &[".a@b.co", "a..b@c.de", "a@b..co", "a@b"]),
            (r"^(?=.*[a-z])(?=.*\d).{3,}$", &["a1x", "11b"], &["a1", "abc", "123"]),
            (r"^(?!\d)\w+$", &["a1"], &["1a"]),
            (r"^(?!.*ab)[abc]+$", &["ba", "acb", "aa"], &["ab", "caab"]),
            (r"^(?!.*\s)", &["abc", "a\n b"], &["a b"]),
            (r"^(?![^])$", &[""], &["a"]),
            (r"^(?!$)", &["a"], &[""]),
            // As pydantic writes it for decimal numbers.
            (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", &["1.5", "-0", ".5"], &["", "-", "."]),
            (r"^(?=a|b).$", &["a", "b"], &["c"]),
        ] {
            tells_apart(pattern, good, bad);
        }
    }

    #[test]
    fn what_cannot_be_kept_of_a_pattern_has_a_reason() {
        for (pattern, reason) in [
            ("a(?=b)", LOOKS),
            ("(?<=a)b", LOOKS),
            ("^(?!abc)x", LOOKS),
            ("^(?=a)b|c", LOOKS),
            (r"\bword\b", BORDER),
            (r"(a)\1", REFERS),
            (r"(?<n>a)\k<n>", REFERS),
            ("a\\", ESCAPE),
            (r"\ud800", ESCAPE),
            (r"\q", ESCAPE),
            ("[a", OPEN_CLASS),
            ("[b-a]", ORDER),
            ("(?m:^a)", FLAGS),
        ] {
            assert_eq!(expressions(pattern).unwrap_err(), reason, "{pattern}");
        }
    }
}
