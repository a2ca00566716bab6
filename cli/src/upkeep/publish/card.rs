//! The card of a published folder: what it is, where it comes from, what was taken out.

use std::path::Path;

use exporter::Report;

use super::SESSIONS;
use crate::exit::Failure;
use crate::print;
use crate::upkeep::redact::Redacted;
use crate::version;

/// The file that tells `datasets` which files are rows.
const CONFIGS: &str = ".huggingface.yaml";

/// A card.
pub(super) struct Card<'a> {
    pub(super) license: Option<String>,
    pub(super) report: &'a Report,
    pub(super) redacted: &'a Redacted,
}

impl Card<'_> {
    /// Markdown, with the settings that a hub reads in front.
    pub(super) fn text(&self) -> String {
        let license = self.license.as_ref().map(|name| format!("license: {name}\n"));
        let models: Vec<String> =
            self.report.notes.models.keys().map(|name| format!("`{name}`")).collect();

        [
            format!(
                "---\n{}tags:\n- agent-traces\n- rolltape\n---\n\n",
                license.unwrap_or_default()
            ),
            "# Recorded agents\n\n".to_owned(),
            format!(
                "What agents said to language models and what these sampled, token by token: {} \
                 from {}. Models: {}.\n\n",
                print::count(self.report.rows, "row"),
                print::count(self.redacted.episodes, "episode"),
                models.join(", ")
            ),
            FILES.to_owned(),
            self.provenance(),
        ]
        .concat()
    }

    fn provenance(&self) -> String {
        let secrets = self.redacted.secrets.iter();
        let lines: String =
            secrets.map(|(kind, count)| format!("| {kind} | {count} |\n")).collect();
        let taken = match lines.is_empty() {
            true => "No secret was found.\n".to_owned(),
            false => format!(
                "Secrets were taken out of {} in {}. In texts `[redacted KIND]` stands in their \
                 place. In ids as many others do: these have `loss_mask` 0, and the rows have the \
                 reason `redacted`.\n\n| secret | different ones |\n| --- | --- |\n{lines}",
                print::count(self.redacted.changed_calls, "call"),
                print::count(self.redacted.changed_episodes, "episode"),
            ),
        };
        format!(
            "## Where it comes from\n\nRecorded and written by {}. `manifest.json` has the hash \
             of each file of rows, and what was left out and why.\n\n{taken}",
            version::text()
        )
    }
}

const FILES: &str = "\
## Files

- `trajectories.parquet`: one row a trajectory, with ids, logprobs, masks, rewards and messages.
- `sessions/`: one file an episode, for viewers of agent traces.
- `_forks.pq`: where histories were left, and why.

```python
from datasets import load_dataset

rows = load_dataset(\"PATH\", split=\"train\")
```

";

/// Tells readers of the folder that the sessions are not rows.
pub(super) fn add_sessions(folder: &Path) -> Result<(), Failure> {
    let path = folder.join(CONFIGS);
    let mut configs = std::fs::read_to_string(&path)?;
    configs.push_str(&format!(
        "- config_name: {SESSIONS}\n  data_files:\n  - \"{SESSIONS}/*.jsonl\"\n"
    ));
    Ok(std::fs::write(path, configs)?)
}
