//! Text to ids and back, by the checkpoint's own `tokenizer.json`.

mod file;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use lily_files::Files;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{DecoderWrapper, PostProcessorWrapper, TokenizerImpl};

use crate::TextError;
use crate::synth;
use file::AddedToken;

/// The pattern engine gives up, without a word, after a million steps of backtracking, and a run
/// of white space takes one step for each character.
const MAX_WHITE_SPACE: usize = 500_000;

/// Published tokenizers are 13 MB; anything near this is not one.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// U+FEFF in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What becomes of control tokens that stand in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Markers {
    /// They are spelled out in ordinary pieces, so that text cannot act as a control token.
    #[default]
    Plain,
    /// Each becomes its own id, as in the reference tokenizer.
    Control,
}

/// The tokenizer of a checkpoint. Cloning is cheap and shares the tables.
#[derive(Clone)]
pub struct Tokenizer {
    tables: Arc<Tables>,
}

type Library = TokenizerImpl<
    BPE,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

struct Tables {
    /// Knows no added tokens: they are cut out in front of it.
    library: Library,
    markers: AhoCorasick,
    /// Id of each pattern of `markers`.
    marker_ids: Vec<u32>,
    /// Bytes of all tokens, one after another in order of their ids.
    bytes: Vec<u8>,
    /// By id.
    entries: Vec<Entry>,
    end_tokens: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    end: u32,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A row of the model without a token.
    Unused,
    Ordinary,
    /// An added token that decoders show.
    Visible,
    /// An added token that decoders drop.
    Special,
}

impl Tokenizer {
    /// Opens the `tokenizer.json` of a checkpoint; `tokenizer_config.json` beside it may name
    /// the end token and further added tokens.
    ///
    /// # Errors
    /// The file is missing, malformed, or describes a tokenizer that lily does not follow exactly.
    pub fn open<'a>(files: impl Into<Files<'a>>) -> Result<Tokenizer, TextError> {
        let files = files.into();
        let file = files.path("tokenizer.json");
        let text = read(files, "tokenizer.json")?.ok_or_else(|| TextError::Missing {
            file: file.clone(),
            wanted: "copy it from the model's original repository into the checkpoint folder",
        })?;
        let config = read_config(files)?;
        Tokenizer::parse(&file, &text, &files.path("tokenizer_config.json"), &config)
    }

    /// A tokenizer from the text of a `tokenizer.json` alone.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn from_json(text: &[u8]) -> Result<Tokenizer, TextError> {
        let config_file = Path::new("tokenizer_config.json");
        Tokenizer::parse(Path::new("tokenizer.json"), text, config_file, &Value::Null)
    }

    /// The tokenizer of lily's own small models: one token for each byte and the control tokens.
    ///
    /// # Errors
    /// Never in practice: the files are lily's own, and a test opens them.
    pub fn bytes() -> Result<Tokenizer, TextError> {
        let files = synth::synth_tokenizer_files(synth::SYNTH_MIN_VOCAB)?;
        let config: Value = serde_json::from_str(&files.tokenizer_config_json)
            .map_err(|e| file::malformed(Path::new("tokenizer_config.json"), e.to_string()))?;
        Tokenizer::parse(
            Path::new("tokenizer.json"),
            files.tokenizer_json.as_bytes(),
            Path::new("tokenizer_config.json"),
            &config,
        )
    }

    fn parse(
        file: &Path,
        text: &[u8],
        config_file: &Path,
        config: &Value,
    ) -> Result<Tokenizer, TextError> {
        let parts = file::parse(file, text)?;
        let mut added = parts.added;
        for token in file::added_in_config(config_file, config)? {
            if !added.iter().any(|known| known.id == token.id && known.content == token.content) {
                added.push(token);
            }
        }
        let (bytes, entries) = spell(file, &parts.model, &added)?;
        let markers = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(added.iter().map(|token| &token.content))
            .map_err(|e| file::malformed(file, format!("added tokens: {e}")))?;
        let end_tokens = end_tokens(config_file, config, &added)?;

        let mut library = Library::new(parts.model);
        library
            .with_normalizer(parts.normalizer)
            .map_err(|e| file::malformed(file, e.to_string()))?
            .with_pre_tokenizer(Some(parts.pre_tokenizer));
        let marker_ids = added.iter().map(|token| token.id).collect();
        let tables = Tables { library, markers, marker_ids, bytes, entries, end_tokens };
        Ok(Tokenizer { tables: Arc::new(tables) })
    }

    /// The ids of a text. Nothing is added in front or behind.
    ///
    /// # Errors
    /// [`TextError::WhiteSpace`] for a run of white space beyond the tokenizer's reach.
    pub fn encode(&self, text: &str, markers: Markers) -> Result<Vec<u32>, TextError> {
        match markers {
            Markers::Control => self.encode_around(text, &[]),
            Markers::Plain => {
                let mut ids = Vec::with_capacity(text.len() / 3);
                self.encode_plain(text, &mut ids)?;
                Ok(ids)
            }
        }
    }

    /// The ids of a text in which some ranges are a client's: control tokens are recognised only
    /// where they do not touch one. `client` holds byte ranges on character boundaries, ascending
    /// and not overlapping.
    ///
    /// What lies between two recognised control tokens is encoded as one stretch, so a client range
    /// changes no id as long as it holds no part of a control token.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(crate) fn encode_around(
        &self,
        text: &str,
        client: &[Range<usize>],
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut done = 0;
        let mut frame_start = 0;
        let ends = client.iter().cloned().chain([text.len()..text.len()]);
        for range in ends {
            let frame = text.get(frame_start..range.start).unwrap_or("");
            for found in self.tables.markers.find_iter(frame) {
                let (start, end) = (frame_start + found.start(), frame_start + found.end());
                self.encode_plain(&text[done..start], &mut ids)?;
                ids.push(self.tables.marker_ids[found.pattern().as_usize()]);
                done = end;
            }
            frame_start = range.end;
        }
        self.encode_plain(&text[done..], &mut ids)?;
        Ok(ids)
    }

    /// The characters that control tokens begin with: text without them cannot hold one.
    pub(crate) fn marker_starts(&self) -> Vec<char> {
        let mut starts: Vec<char> = self
            .tables
            .marker_ids
            .iter()
            .filter_map(|&id| std::str::from_utf8(self.token_bytes(id)?).ok()?.chars().next())
            .collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        if text.is_empty() {
            return Ok(());
        }
        let longest = longest_white_space(text);
        if longest > MAX_WHITE_SPACE {
            return Err(TextError::WhiteSpace { found: longest, limit: MAX_WHITE_SPACE });
        }
        let encoding = self
            .tables
            .library
            .encode_fast(text, false)
            .map_err(|e| TextError::Encode { detail: e.to_string() })?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The text of a list of ids, invalid UTF-8 replaced by U+FFFD. Ids without a token, which
    /// exist in models whose vocabulary is padded, are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id).unwrap_or(&[]));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of one token; not always whole characters. `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let entry = self.entry(id)?;
        self.tables.bytes.get(entry.start as usize..entry.end as usize)
    }

    /// One more than the largest id with a token. The model may have more rows than that.
    pub fn vocab_len(&self) -> usize {
        self.tables.entries.len()
    }

    /// Whether the id is one of the tokens that frame a conversation, such as `<|im_end|>`,
    /// `<think>` or `<tool_call>`.
    pub fn is_control(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| matches!(entry.kind, Kind::Visible | Kind::Special))
    }

    /// Whether decoders drop the token (`special` in the file): `<|im_end|>` but not `<think>`.
    pub fn is_special(&self, id: u32) -> bool {
        self.entry(id).is_some_and(|entry| entry.kind == Kind::Special)
    }

    /// The id of a control token by its text.
    pub fn id_of(&self, content: &str) -> Option<u32> {
        let same = |id: &&u32| self.token_bytes(**id) == Some(content.as_bytes());
        self.tables.marker_ids.iter().find(same).copied()
    }

    /// The tokens that end a turn by their names: the tokenizer's `eos_token`, `<|im_end|>` and
    /// `<|endoftext|>`, as far as they exist, ascending. `generation_config.json` may say more.
    pub fn end_tokens(&self) -> &[u32] {
        &self.tables.end_tokens
    }

    fn entry(&self, id: u32) -> Option<Entry> {
        let entry = self.tables.entries.get(usize::try_from(id).ok()?)?;
        (entry.kind != Kind::Unused).then_some(*entry)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_len", &self.vocab_len()).finish_non_exhaustive()
    }
}

/// `tokenizer_config.json` of a model, null if there is none.
pub(crate) fn read_config(files: Files<'_>) -> Result<Value, TextError> {
    let name = "tokenizer_config.json";
    match read(files, name)? {
        None => Ok(Value::Null),
        Some(text) => serde_json::from_slice(&text)
            .map_err(|e| file::malformed(&files.path(name), e.to_string())),
    }
}

/// The bytes of a model's file, or `None` if it does not exist.
pub(crate) fn read(files: Files<'_>, name: &str) -> Result<Option<Cow<'static, [u8]>>, TextError> {
    match files {
        Files::Folder(folder) => Ok(read_file(&folder.join(name))?.map(Cow::Owned)),
        Files::Packed(packed) => Ok(packed.file(name).map(Cow::Borrowed)),
    }
}

fn read_file(file: &Path) -> Result<Option<Vec<u8>>, TextError> {
    let unreadable = |source| TextError::Unreadable { file: file.to_path_buf(), source };
    match fs::metadata(file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(e)),
        // A pipe or a device could block, or never end.
        Ok(about) if !about.is_file() => {
            return Err(file::malformed(file, "it is no regular file"));
        }
        Ok(about) if about.len() > MAX_FILE_BYTES => {
            let detail =
                format!("it has {} bytes, at most {MAX_FILE_BYTES} are expected", about.len());
            return Err(file::malformed(file, detail));
        }
        Ok(_) => {}
    }
    let mut bytes = fs::read(file).map_err(unreadable)?;
    // Some editors put a byte order mark in front: no part of the text.
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(Some(bytes))
}

/// The text of a token that `tokenizer_config.json` names: a string, or an object in old files.
pub(crate) fn named_token<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The bytes of every token, and for each id where they stand.
fn spell(
    file: &Path,
    model: &BPE,
    added: &[AddedToken],
) -> Result<(Vec<u8>, Vec<Entry>), TextError> {
    let bytes_of = byte_alphabet();
    let unused = Entry { start: 0, end: 0, kind: Kind::Unused };
    let vocab = model.get_vocab();
    let mut texts: Vec<(u32, &str, Kind)> = Vec::with_capacity(vocab.len() + added.len());
    for (text, &id) in &vocab {
        file::check_id(file, id, text)?;
        texts.push((id, text, Kind::Ordinary));
    }
    texts.sort_unstable_by_key(|&(id, ..)| id);

    let mut single = [false; 256];
    for &(_, text, _) in &texts {
        let mut chars = text.chars();
        if let (Some(c), None) = (chars.next(), chars.next())
            && let Some(byte) = bytes_of(c)
        {
            single[usize::from(byte)] = true;
        }
    }
    if let Some(missing) = single.iter().position(|present| !present) {
        let detail = format!(
            "the vocabulary has no token for byte {missing}, all 256 are needed to spell any text"
        );
        return Err(file::malformed(file, detail));
    }
    for token in added {
        let kind = if token.special { Kind::Special } else { Kind::Visible };
        texts.push((token.id, &token.content, kind));
    }

    let largest = texts.iter().map(|&(id, ..)| id).max().unwrap_or(0);
    let mut entries = vec![unused; largest as usize + 1];
    let mut bytes = Vec::with_capacity(texts.len() * 8);
    for (id, text, kind) in texts {
        let entry = &mut entries[id as usize];
        let start = bytes.len();
        let spelled: Option<Vec<u8>> = text.chars().map(&bytes_of).collect();
        match spelled {
            Some(spelled) if kind == Kind::Ordinary => bytes.extend(spelled),
            // Added tokens are written as they are, and so is what the alphabet cannot spell.
            _ => bytes.extend_from_slice(text.as_bytes()),
        }
        if entry.kind != Kind::Unused {
            let same = bytes[entry.start as usize..entry.end as usize] == bytes[start..];
            if !same || entry.kind == kind {
                let detail = format!("id {id} belongs to two tokens, one of them {text:?}");
                return Err(file::malformed(file, detail));
            }
        }
        let position = |at: usize| {
            u32::try_from(at).map_err(|_| file::malformed(file, "its tokens exceed 4 GiB"))
        };
        *entry = Entry { start: position(start)?, end: position(bytes.len())?, kind };
    }
    Ok((bytes, entries))
}

/// The byte that a character of a byte-level vocabulary stands for: printable characters of
/// Latin-1 for themselves, the other 68 bytes in order from U+0100.
fn byte_alphabet() -> impl Fn(char) -> Option<u8> {
    let printable = |b: &u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let spare: Vec<u8> = (0..=255).filter(|b| !printable(b)).collect();
    move |c| {
        let code = u32::from(c);
        match u8::try_from(code) {
            Ok(byte) => printable(&byte).then_some(byte),
            Err(_) => spare.get(usize::try_from(code - 256).ok()?).copied(),
        }
    }
}

/// The character that stands for a byte in a byte-level vocabulary.
pub(crate) fn byte_character(byte: u8) -> char {
    let bytes_of = byte_alphabet();
    let candidates = (0..512).filter_map(char::from_u32);
    candidates.into_iter().find(|&c| bytes_of(c) == Some(byte)).unwrap_or('\u{fffd}')
}

fn end_tokens(file: &Path, config: &Value, added: &[AddedToken]) -> Result<Vec<u32>, TextError> {
    let id = |text: &str| added.iter().find(|token| token.content == text).map(|token| token.id);
    let named = named_token(config, "eos_token");
    if let Some(name) = named
        && id(name).is_none()
    {
        let detail = format!("`eos_token` is {name:?}, which is none of the added tokens");
        return Err(file::malformed(file, detail));
    }
    let names = [named, Some("<|im_end|>"), Some("<|endoftext|>")];
    let mut ids: Vec<u32> = names.into_iter().flatten().filter_map(id).collect();
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Length in characters of the longest run of white space.
fn longest_white_space(text: &str) -> usize {
    // A run cannot be longer than the text: most texts need no look.
    if text.len() <= MAX_WHITE_SPACE {
        return 0;
    }
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}
