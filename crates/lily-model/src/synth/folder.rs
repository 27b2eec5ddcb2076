//! The output folder: what is in it, whether it may be used, and how it is cleared.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::plan::SynthPlan;
use super::{Existing, SynthError, SynthOptions};

/// The file that says which random checkpoint a folder holds; written under [`PARTIAL`] first.
pub(super) const MARKER: &str = "synth.json";
/// Suffix of files that are not complete.
pub(super) const PARTIAL: &str = "partial";

/// Whether there is anything to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    Write,
    /// The identical checkpoint is there.
    Nothing,
}

/// A folder that was taken for writing. Dropped before [`Claim::keep`], it is cleared again.
#[derive(Debug)]
pub(super) struct Claim {
    out: PathBuf,
    made: bool,
    kept: bool,
}

/// Decides what to do with the folder, without changing anything.
pub(super) fn inspect(options: &SynthOptions, plan: &SynthPlan) -> Result<Todo, SynthError> {
    let out = &options.out;
    if options.existing == Existing::Keep && holds(out, plan) {
        return Ok(Todo::Nothing);
    }
    let names = names(out)?;
    let cut_run = names.contains(&format!("{MARKER}.{PARTIAL}"));
    if let Some(found) = names.first()
        && options.existing == Existing::Keep
        && !cut_run
    {
        return Err(SynthError::NotEmpty { out: out.clone(), found: found.clone() });
    }
    // What a cut run left may have holes: its length says nothing about the space it takes.
    let freed = names.iter().filter(|name| is_model_file(name) && !name.ends_with(PARTIAL));
    let freed: u64 = freed.filter_map(|name| Some(fs::metadata(out.join(name)).ok()?.len())).sum();
    let disk = out.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    let free = fs4::available_space(disk).map_err(failed("ask for the free space of", disk))?;
    let (needed, available) = (plan.total_bytes(), free.saturating_add(freed));
    if needed > available {
        return Err(SynthError::NoSpace { out: out.clone(), needed, available });
    }
    Ok(Todo::Write)
}

impl Claim {
    /// Makes the folder, marks it as being written and removes the model in it.
    pub fn new(out: &Path, plan: &SynthPlan) -> Result<Self, SynthError> {
        let made = !out.exists();
        fs::create_dir_all(out).map_err(failed("make the folder", out))?;
        let claim = Self { out: out.into(), made, kept: false };
        let marker = claim.partial(MARKER);
        fs::write(&marker, format!("{:#}\n", plan.marker)).map_err(failed("write", &marker))?;
        clear(out)?;
        Ok(claim)
    }

    /// The path of a file while it is not complete.
    pub fn partial(&self, name: &str) -> PathBuf {
        self.out.join(format!("{name}.{PARTIAL}"))
    }

    /// Makes all files complete; the configuration comes last, because without it nothing loads.
    pub fn keep(mut self, plan: &SynthPlan) -> Result<(), SynthError> {
        for (name, _) in plan.files() {
            self.complete(name)?;
        }
        for (name, text) in &plan.texts {
            let path = self.partial(name);
            fs::write(&path, text).map_err(failed("write", &path))?;
            self.complete(name)?;
        }
        self.complete(MARKER)?;
        self.kept = true;
        Ok(())
    }

    fn complete(&self, name: &str) -> Result<(), SynthError> {
        let path = self.partial(name);
        // The name must not reach the disk before the content.
        let file = fs::OpenOptions::new().write(true).open(&path);
        file.and_then(|file| file.sync_all()).map_err(failed("write", &path))?;
        fs::rename(&path, self.out.join(name)).map_err(failed("rename", &path))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here: an error is already on its way up, and
        // the marker lets the next run clear the folder.
        if !self.kept && clear(&self.out).is_ok() {
            let _ = fs::remove_file(self.partial(MARKER));
            if self.made {
                let _ = fs::remove_dir(&self.out);
            }
        }
    }
}

/// An [`SynthError::Io`] for a failed action on a path.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SynthError {
    let path = path.to_path_buf();
    move |source| SynthError::Io { action, path, source }
}

/// Whether the folder holds exactly the planned checkpoint, complete.
fn holds(out: &Path, plan: &SynthPlan) -> bool {
    let json = |name: &str| -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(out.join(name)).ok()?).ok()
    };
    let size = |name: &str| fs::metadata(out.join(name)).map(|meta| meta.len()).ok();
    json(MARKER).as_ref() == Some(&plan.marker)
        && json("config.json").as_ref() == Some(&plan.config)
        && plan.texts.iter().all(|(name, _)| size(name).is_some())
        && plan.files().all(|(name, bytes)| size(name) == Some(bytes))
}

/// Sorted names in a folder; none if there is no folder.
fn names(out: &Path) -> Result<Vec<String>, SynthError> {
    let entries = match fs::read_dir(out) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", out))?,
    };
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into());
    let mut names: Vec<String> =
        entries.map(name).collect::<Result<_, _>>().map_err(failed("list", out))?;
    names.sort();
    Ok(names)
}

/// Removes the model in a folder, complete or not, except the marker of the running write.
fn clear(out: &Path) -> Result<(), SynthError> {
    let mut names = names(out)?;
    names.retain(|name| is_model_file(name));
    // Nothing may load while the rest disappears.
    names.sort_by_key(|name| name != "config.json");
    for name in names {
        let path = out.join(name);
        fs::remove_file(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}

/// Whether a file belongs to a model, apart from its tokenizer, or is the incomplete form of one.
fn is_model_file(name: &str) -> bool {
    let texts = ["config.json", "generation_config.json", "model.safetensors.index.json"];
    let complete = name.strip_suffix(PARTIAL).and_then(|name| name.strip_suffix('.'));
    let base = complete.unwrap_or(name);
    (base.starts_with("model") && base.ends_with(".safetensors"))
        || texts.contains(&base)
        || name == MARKER
}
