//! `lily pull`: a model from the hub.

use std::error::Error;
use std::io::{IsTerminal as _, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use lily_hub::{HubError, ModelId, Progress, PullOptions, Watch, pull};
use lily_model::Config;

use crate::args::PullArgs;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::output::{note, print, print_json};

/// Time between two lines where there is no terminal for a bar.
const LINE: Duration = Duration::from_secs(30);

/// Runs the command.
pub fn run(args: &PullArgs) -> Result<ExitCode> {
    let options = PullOptions { check: args.check, ..PullOptions::from_env()? };
    let interrupt = Interrupt::new()?;
    let mut screen = Screen::new(&args.model)?;
    let result = interrupt.during(|cancel| pull(&args.model, &options, cancel, &mut screen));
    screen.clear();
    let pulled = match result {
        Ok(pulled) => pulled,
        Err(stopped @ HubError::Interrupted { .. }) => {
            note(format_args!("lily: {stopped}"));
            return Ok(ExitCode::from(INTERRUPTED as u8));
        }
        Err(error) => return Err(error.into()),
    };
    if args.json {
        print_json(&pulled)?;
        return Ok(ExitCode::SUCCESS);
    }
    print(format_args!("{}\n", pulled.folder.display()))?;
    let (all, new) = (HumanBytes(pulled.bytes), HumanBytes(pulled.received));
    note(format_args!(
        "lily: {} has {} files, {all} ({new} downloaded now); `lily chat -m {}` talks with it",
        pulled.model,
        pulled.files.len(),
        args.model
    ));
    Ok(ExitCode::SUCCESS)
}

/// Shows a download: a bar, or a line now and then.
struct Screen {
    bar: Option<ProgressBar>,
    model: String,
    /// When the last line was written.
    last: Instant,
}

impl Screen {
    fn new(model: &ModelId) -> Result<Self> {
        let style = ProgressStyle::with_template(
            "{wide_msg} [{bar:20}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left",
        )?;
        let bar = stderr().is_terminal().then(|| ProgressBar::new(0).with_style(style));
        Ok(Self { bar, model: model.to_string(), last: Instant::now() })
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Screen {
    fn progress(&mut self, progress: Progress<'_>) {
        let Progress { file, done, total } = progress;
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            // What was in the cache is no speed.
            if bar.position() == 0 {
                bar.set_position(done);
                bar.reset_eta();
            }
            bar.set_position(done);
            bar.set_message(file.to_owned());
        } else if self.last.elapsed() >= LINE {
            self.last = Instant::now();
            let (model, done, total) = (&self.model, HumanBytes(done), HumanBytes(total));
            note(format_args!("lily: {model}: {done} of {total}, {file}"));
        }
    }

    /// A model that lily does not run costs nobody twenty gigabytes.
    fn configuration(&mut self, folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        Config::read(folder)?;
        Ok(())
    }
}
