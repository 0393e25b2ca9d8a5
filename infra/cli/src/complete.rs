//! Completes a command line for kubectl, which starts the program [`PROGRAM`] with the words after
//! `kubectl driftless`. The last word is the one to complete.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory as _, ValueHint, builder::StyledStr};
use driftless_api::Stack;
use kube::ResourceExt;

use crate::arguments::{Arguments, Connection};

/// The name by which kubectl starts this program to complete a command line.
pub const PROGRAM: &str = "kubectl_complete-driftless";

/// Cobra's directives for the shell, after the candidates.
const FILES: &str = ":0";
const NO_FILES: &str = ":4";

/// What may stand in place of the last word.
#[derive(Debug)]
pub struct Completion {
    /// The word so far.
    start: String,
    /// The candidates, each with a tab and its description.
    candidates: Vec<String>,
    /// The cluster whose Stacks are candidates too.
    pub cluster: Option<Connection>,
    directive: &'static str,
}

impl Completion {
    /// The completion of the last of these words.
    #[must_use]
    pub fn of(words: &[String]) -> Self {
        let (start, before) = words.split_last().map_or(("", &[][..]), |(start, before)| (start.as_str(), before));
        let mut root = Arguments::command();
        root.build();
        let (mut command, mut count, mut waiting) = (&root, 0, None::<&Arg>);
        let mut connection = Connection { kubeconfig: None, context: None, namespace: None };
        for word in before {
            if let Some(option) = waiting.take() {
                set(&mut connection, option, word);
            } else if let Some((option, value)) = option(command, word) {
                match value {
                    Some(value) => set(&mut connection, option, value),
                    None => waiting = Some(option).filter(|option| option.get_action().takes_values()),
                }
            } else if let Some(next) = command.find_subcommand(word) {
                command = next;
            } else if !word.starts_with('-') {
                count += 1;
            }
        }
        let operand = || {
            command.get_positionals().nth(count).or_else(|| command.get_positionals().last().filter(|operand| is_list(operand)))
        };
        let described = |name: &str, about: Option<&StyledStr>| match about {
            Some(about) => format!("{name}\t{about}"),
            None => name.to_owned(),
        };
        let (mut candidates, mut cluster, mut directive) = (Vec::new(), None, NO_FILES);
        if waiting.is_none() && start.starts_with('-') {
            let options = command.get_arguments().filter(|option| !option.is_hide_set());
            let text = |option: &Arg| Some(described(&format!("--{}", option.get_long()?), option.get_help()));
            candidates.extend(options.filter_map(text));
        } else if waiting.is_none() && command.has_subcommands() {
            let text = |command: &Command| described(command.get_name(), command.get_about());
            candidates.extend(command.get_subcommands().map(text));
        } else if let Some(wanted) = waiting.or_else(operand) {
            let values = wanted.get_possible_values();
            candidates.extend(values.iter().map(|value| described(value.get_name(), value.get_help())));
            if wanted.get_value_hint() == ValueHint::AnyPath {
                directive = FILES;
            }
            cluster = Some(connection).filter(|_| ["stack", "stacks", "target"].contains(&wanted.get_id().as_str()));
        }
        Self { start: start.to_owned(), candidates, cluster, directive }
    }

    /// The answer to kubectl, with these Stacks of the cluster.
    #[must_use]
    pub fn answer(&self, stacks: &[Stack]) -> String {
        let candidates = self.candidates.iter().cloned().chain(stacks.iter().map(ResourceExt::name_any));
        let fitting = candidates.filter(|candidate| candidate.starts_with(&self.start));
        fitting.chain([self.directive.to_owned()]).map(|line| line + "\n").collect()
    }
}

fn is_list(operand: &Arg) -> bool {
    matches!(operand.get_action(), ArgAction::Append)
}

/// The option that a word names, with the value that is attached to it: `--output=json`, `-ojson`.
fn option<'a>(command: &'a Command, word: &'a str) -> Option<(&'a Arg, Option<&'a str>)> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let is_named = |option: &&Arg| {
        let long = option.get_long().is_some_and(|long| name.strip_prefix("--") == Some(long));
        long || option.get_short().is_some_and(|short| name == format!("-{short}"))
    };
    let named = command.get_arguments().find(is_named).map(|option| (option, value));
    named.or_else(|| {
        let mut letters = word.strip_prefix('-')?.chars();
        let short = letters.next();
        let takes = |option: &&Arg| option.get_short() == short && option.get_action().takes_values();
        short.and_then(|_| command.get_arguments().find(takes)).map(|option| (option, Some(letters.as_str())))
    })
}

fn set(connection: &mut Connection, option: &Arg, value: &str) {
    match option.get_id().as_str() {
        "kubeconfig" => connection.kubeconfig = Some(PathBuf::from(value)),
        "context" => connection.context = Some(value.to_owned()),
        "namespace" => connection.namespace = Some(value.to_owned()),
        _ => {}
    }
}
