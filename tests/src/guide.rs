//! A page of `docs` whose commands are run as written: its blocks with the mark `bash`. The objects
//! of its other blocks.

use std::{cell::RefCell, collections::BTreeMap, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// The objects in the blocks of a page with the mark `yaml`.
pub fn objects(page: &str) -> Result<Vec<Value>> {
    let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let objects = blocks.map(|(block, _)| serde_saphyr::from_multiple::<Value>(block).with_context(|| block.to_owned()));
    Ok(objects.collect::<Result<Vec<_>>>()?.concat())
}

/// The objects of a `ResourceSet` of Flux Operator for one of its inputs. Only the two templates
/// that the pages use are known.
pub fn rendered(set: &Value, inputs: &[(&str, &str)]) -> Result<Vec<Value>> {
    fn fill(value: &mut Value, inputs: &[(&str, &str)]) {
        match value {
            Value::String(text) => {
                for (name, input) in inputs {
                    let quoted = text.replace(&format!("<< inputs.{name} | quote >>"), input);
                    *text = quoted.replace(&format!("<< inputs.{name} >>"), input);
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| fill(value, inputs)),
            Value::Object(fields) => fields.values_mut().for_each(|value| fill(value, inputs)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut resources = set["spec"]["resources"].clone();
    fill(&mut resources, inputs);
    ensure!(!resources.to_string().contains("<<"), "a template is left: {resources}");
    Ok(serde_json::from_value(resources)?)
}

/// The commands of a page.
pub struct Guide {
    /// The blocks by heading, in order.
    blocks: BTreeMap<String, Vec<String>>,
    /// The commands that the page requires first in every shell: the blocks before its first
    /// section.
    first: String,
    /// The environment of the shell.
    environment: Vec<(String, String)>,
    left: RefCell<Vec<(String, usize)>>,
}

impl Guide {
    /// The commands of a page, to run with this environment, and with the world's tools on PATH.
    pub fn read(page: &str, tools: &Path, environment: &[(&str, &str)]) -> Result<Self> {
        let (mut blocks, mut heading) = (BTreeMap::<_, Vec<String>>::new(), String::new());
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(section) = line.strip_prefix("## ") {
                section.clone_into(&mut heading);
            } else if let Some(language) = line.strip_prefix("```") {
                let block: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
                if language == "bash" {
                    blocks.entry(heading.clone()).or_default().push(block.join("\n"));
                }
            }
        }
        let first = blocks.remove("").unwrap_or_default().join("\n");
        let left = blocks.iter().flat_map(|(heading, blocks)| (0..blocks.len()).map(|block| (heading.clone(), block)));
        let left = RefCell::new(left.collect());
        let path = format!("{}:{}", tools.display(), std::env::var_os("PATH").unwrap_or_default().display());
        let environment = environment.iter().copied().chain([("PATH", path.as_str())]);
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self { blocks, first, environment, left })
    }

    /// Runs a block of a section, counted from 0, as a user would: in the folder of the repository.
    /// Returns its output.
    pub async fn run(&self, heading: &str, block: usize) -> Result<String> {
        let commands = self.blocks.get(heading).and_then(|blocks| blocks.get(block));
        let commands = commands.with_context(|| format!("the page has no block {block} under {heading:?}"))?;
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &format!("{}\n{commands}", self.first)])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        let [printed, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        ensure!(output.status.success(), "{heading}, block {block}:\n{commands}\n{}: {said}{printed}", output.status);
        self.left.borrow_mut().retain(|left| left != &(heading.to_owned(), block));
        Ok(printed)
    }

    /// Fails unless every block was run.
    pub fn all_were_run(&self) -> Result<()> {
        let left = self.left.borrow();
        ensure!(left.is_empty(), "nobody ran {left:?}");
        Ok(())
    }
}
