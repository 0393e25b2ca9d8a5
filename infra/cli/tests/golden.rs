//! The text of each command, equal to the files in `golden` and to the blocks of `docs/cli.md` and
//! `docs/tasks`.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::{fs, path::Path, slice};

use clap::{CommandFactory as _, Parser as _, ValueEnum as _};
use driftless_api::{Stack, StackPlan, Update, facts::Facts as _};
use driftless_cli::{
    Error,
    arguments::Arguments,
    cluster::Target,
    commands::{Terminal, completion, in_cluster},
    diff, explain,
    facts::Unknown,
    get::{self, Row},
    log,
    render::{Format, Style, age, formatted, short, span},
    request::{self, RunSettings},
    tree, view, wait,
};
use driftless_core::{Operation, SourceState, Stack as CoreStack, run::Standing};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use support::{PREVIEW_LOG, facts_of, golden, now, preview, stack, stacks, update, updates};

const PLAIN: Style = Style { colour: false, columns: None };

fn explained(name: &str, is_stored: bool, unknown: Vec<Unknown>) -> String {
    let snapshot = facts_of(CoreStack::from(&stack(name)), is_stored);
    let current = snapshot.stack.status.current_update.as_ref().map(|current| update(&current.name));
    explain::render(&explain::stack(&snapshot, unknown, current.as_ref(), now()), PLAIN, now())
}

#[test]
fn stacks_are_shown_at_a_glance() {
    let rows: Vec<_> = stacks().iter().map(Row::of).collect();
    let text = get::render(&rows, false, PLAIN, now());
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    golden("get", &text);
    golden("get-all", &get::render(&rows[..1], true, PLAIN, now()));
    golden("get-json", &formatted(&[&rows[0]], Format::Json).unwrap());
    golden("get-yaml", &formatted(&[&rows[0]], Format::Yaml).unwrap());
}

#[test]
fn colour_changes_no_character_of_the_text() {
    let rows: Vec<_> = stacks().iter().map(Row::of).collect();
    let coloured = get::render(&rows, false, Style { colour: true, ..PLAIN }, now());
    assert!(coloured.contains("\u{1b}[31mUpdateFailed\u{1b}[0m"), "{coloured}");
    let stripped = ["31", "32", "33", "2", "0"].iter().fold(coloured, |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
    assert_eq!(stripped, get::render(&rows, false, PLAIN, now()));
}

#[test]
fn long_lines_are_wrapped_between_words_below_their_last_column() {
    let narrow = Style { columns: Some(40), ..PLAIN };
    for (text, expected) in [
        ("short\n", "short\n"),
        (
            "Meaning: the Stack waits for another Stack that failed\n\nNext\n",
            "Meaning: the Stack waits for another\n  Stack that failed\n\nNext\n",
        ),
        (
            "  message     New commit detected: the source has changed\n",
            "  message     New commit detected: the\n              source has changed\n",
        ),
        (
            "   ├─ task 0b1c2d3e  started 2026-11-25T08:58:00Z, ended",
            "   ├─ task 0b1c2d3e  started\n   │    2026-11-25T08:58:00Z, ended",
        ),
        (
            "urn:pulumi:prod::web::aws:s3/bucket:Bucket::assets was created",
            "urn:pulumi:prod::web::aws:s3/bucket:Bucket::assets\n  was created",
        ),
        (
            "\u{1b}[33mReconciling\u{1b}[0m because its source has changed",
            "\u{1b}[33mReconciling\u{1b}[0m because its source has\n  changed",
        ),
    ] {
        assert_eq!(narrow.wrap(text), expected);
        assert_eq!(PLAIN.wrap(text), text, "a file is not wrapped");
    }
}

#[test]
fn tree_shows_the_source_its_revisions_updates_and_tasks() {
    let web = stack("web");
    let source = support::block_on(support::Team { is_stored: true }.flux("", "", "", "shop"));
    let driftless_api::facts::Found::Object(source) = source else { unreachable!("the source exists") };
    let since = source.artifact.as_ref().and_then(|artifact| Some(artifact.last_update_time.as_ref()?.0));
    let root = tree::of(&web, Some(&(SourceState::from(&*source), since)), &view::updates_of(&web, updates()), &[], now());
    golden("tree", &tree::render(&root, PLAIN));
    golden("tree-json", &formatted(&root, Format::Json).unwrap());
    let shop = stack("shop");
    let root = tree::of(&shop, None, &view::updates_of(&shop, updates()), &[], now());
    golden("tree-unreadable-source", &tree::render(&root, PLAIN));

    let with = |name: &str, spec: Value| {
        let mut object = json!(stack(name));
        for (field, value) in spec.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        serde_json::from_value::<Stack>(object).unwrap()
    };
    let objects = json!([{ "kind": "Secret", "name": "shop-login" }, { "kind": "ConfigMap", "name": "shop-net" }]);
    let shop = with("shop", json!({ "driftless": { "outputs": objects } }));
    let reads = json!({ "PASSWORD": { "type": "Secret", "secret": { "name": "shop-login", "key": "password" } } });
    let others = [with("web", json!({ "envRefs": reads })), with("api", json!({ "envSecrets": ["shop-login"] })), stack("old")];
    golden("tree-outputs", &tree::render(&tree::of(&shop, None, &[], &others, now()), PLAIN));
}

fn difference(name: &str, updates: &[Update], log: &str) -> diff::Diff {
    let logs = updates.iter().map(|update| (update.name_any(), log.to_owned())).collect();
    diff::of(&stack(name), updates, &logs)
}

#[test]
fn diff_shows_what_a_preview_would_change_and_a_check_found() {
    let previewed = difference("shop", &[preview()], PREVIEW_LOG);
    assert_eq!(previewed.differs, Some(true));
    golden("diff", &diff::render(&previewed, PLAIN, now()));
    golden("diff-json", &formatted(&difference("old", &[], ""), Format::Json).unwrap());
    let drifted = difference("old", &[], "");
    assert_eq!(drifted.differs, Some(true));
    golden("diff-drift", &diff::render(&drifted, PLAIN, now()));
}

#[test]
fn diff_counts_only_changes_left_to_apply() {
    let applied = difference("web", &view::updates_of(&stack("web"), updates()), "");
    assert_eq!(applied.differs, Some(false), "an applied change is no difference");
    golden("diff-applied", &diff::render(&applied, PLAIN, now()));
    assert_eq!(difference("network", &[], "").differs, None, "a failed update leaves an unknown difference");
    assert_eq!(difference("api", &[], "").runs, [], "it never ran");

    let mut older = preview();
    older.status.as_mut().unwrap().end_time = serde_json::from_str("\"2026-11-26T11:20:00Z\"").unwrap();
    let obsolete = difference("shop", &[older], PREVIEW_LOG);
    assert_eq!((obsolete.differs, obsolete.runs.len()), (Some(false), 2), "the update of 11:30 came after it");
    let mut failed = preview();
    let condition = &mut failed.status.as_mut().unwrap().conditions[0];
    (condition.status, condition.reason) = ("True".into(), "Unknown".into());
    assert_eq!(difference("shop", &[failed], PREVIEW_LOG).differs, None, "a failed preview knows no difference");
}

#[test]
fn explanation_names_reason_next_time_and_facts() {
    golden("explain-ready", &explained("shop", true, Vec::new()));
    golden("explain-prerequisite", &explained("api", true, Vec::new()));
    golden("explain-failed", &explained("network", true, Vec::new()));
    golden("explain-running", &explained("web", true, Vec::new()));
    golden("explain-suspended", &explained("old", true, Vec::new()));
    let api = explain::stack(&facts_of(CoreStack::from(&stack("api")), true), Vec::new(), None, now());
    golden("explain-yaml", &formatted(&api, Format::Yaml).unwrap());
}

#[test]
fn unknown_facts_are_said_to_be_unknown() {
    let text = explained("shop", false, vec![Unknown::Git, Unknown::Tree, Unknown::Inputs]);
    for unknown in [Unknown::Git, Unknown::Tree, Unknown::Inputs] {
        assert!(text.contains(unknown.sentence()), "{text}");
    }
}

#[test]
fn update_is_explained_by_the_planner_of_runs() {
    let explained = |name: &str, standing| {
        let explanation = explain::update(&update(name), standing, "driftless-system", now());
        explain::render(&explanation, PLAIN, now())
    };
    golden("explain-update-waiting", &explained("shop-refresh-x7k2p", Standing::Current));
    golden("explain-update-running", &explained("web-5a6b7c8d9e0f", Standing::Current));
    golden("explain-update-ended", &explained("web-3", Standing::Foreign));
}

#[test]
fn requests_equal_their_kubectl_patches() {
    let dry_run = |request: driftless_cli::Result<request::Request>| request.unwrap().dry_run("team", None).unwrap();
    golden("reconcile", &dry_run(request::reconcile(&stack("shop"), true, now())));
    golden("suspend", &dry_run(Ok(request::suspend(&stack("shop")))));
    golden("resume", &dry_run(request::resume(&stack("old"))));
    golden("cancel", &dry_run(request::cancel(&Target::Stack(Box::new(stack("web"))))));
    let drifted = stack("old");
    golden("remediate", &dry_run(request::remediate(&drifted, false)));
    golden("remediate-always", &dry_run(request::remediate(&drifted, true)));
    golden("adopt", &dry_run(request::adopt(&drifted)));
    golden("ignore", &dry_run(request::ignore(&drifted, &["tags.owner".into(), "aws:s3/bucket:Bucket#tags".into()])));
    let settings =
        RunSettings { targets: vec!["urn:pulumi:prod::shop::aws:s3/bucket:Bucket::logs".into()], ..RunSettings::default() };
    let run = request::run(&stack("shop"), Operation::Preview, &settings);
    golden("run-json", &run.clone().unwrap().dry_run("team", Some(Format::Json)).unwrap());
    golden("run", &dry_run(run));
    let reconcile = request::reconcile(&stack("shop"), true, now()).unwrap();
    golden("reconcile-yaml", &reconcile.dry_run("team", Some(Format::Yaml)).unwrap());
    let cancel = request::cancel(&Target::Stack(Box::new(stack("web")))).unwrap();
    golden("cancel-json", &cancel.dry_run("team", Some(Format::Json)).unwrap());
    for arguments in [["run", "up", "shop", "-o", "json"].as_slice(), &["suspend", "shop", "-o", "yaml"]] {
        assert!(Arguments::try_parse_from([&["kubectl-driftless"], arguments].concat()).is_err(), "-o needs --dry-run");
    }
}

/// The Stack `shop` with a plan that waits for its approval.
fn planned() -> Stack {
    let digits = |digit: &str| digit.repeat(64);
    let urn = "urn:pulumi:prod::shop::aws:rds/instance:Instance::db";
    let plan = json!({
        "guarded": true, "state": "Proposed", "hash": digits("7"), "generation": 1, "commit": "main@sha1:7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918",
        "update": "shop-p",
        "counts": { "create": 3, "replace": 1 }, "changesTotal": 4, "madeAt": "2026-11-26T11:50:00Z", "unknownTotal": 2,
        "changes": [{ "urn": urn, "change": "replace", "properties": ["engineVersion"], "replacedBy": ["engineVersion"] }],
        "digests": {
            "binding": digits("1"), "pulumi": "v3.259.0", "resources": digits("2"), "state": digits("3"), "version": 1,
        },
    });
    let mut shop = stack("shop");
    let ours = shop.status.get_or_insert_default().driftless.get_or_insert_default();
    ours.plan = Some(serde_json::from_value(plan).unwrap());
    shop
}

#[test]
fn plan_is_shown_approved_and_rejected_by_its_whole_hash() {
    let shop = planned();
    let hash = "7".repeat(64);
    let diff = diff::of(&shop, &[], &std::collections::BTreeMap::new());
    assert_eq!(diff.differs, Some(true));
    let [approve, reject] =
        [request::approve(&shop, &[], Some(&hash), "ann@example.com").unwrap(), request::reject(&shop, None).unwrap()];
    let shown = diff::render(&diff, PLAIN, now());
    let summary = "+3 ~0 -0 ±1 (replaces aws:rds/instance:Instance db); plan 7777777; 2 values are known only when it is applied";
    for words in [summary, "(Proposed)", "± replace", "engineVersion", "3 resources are not listed"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    golden("diff-plan", &shown);
    let [approval, rejection] = [&approve, &reject].map(|request| request.dry_run("team", None).unwrap());
    golden("approve", &approval);
    golden("reject", &rejection);
    golden("approve-done", &format!("{}\n{}\n", approve.done, reject.done));
    for words in [&*hash, "driftless.dev/approve:", "driftless.dev/approved-by: ann@example.com"] {
        assert!(approval.contains(words), "{words}: {approval}");
    }
    assert!(rejection.contains("driftless.dev/reject:") && !rejection.contains("approve"), "{rejection}");
    assert!(approve.done.contains(", as ann@example.com: +3") && reject.done.contains(summary), "{}", approve.done);
    let refused = |hash: &str| request::approve(&shop, &[], Some(hash), "ann").unwrap_err().to_string();
    assert!(refused("7777777").ends_with("; write all 64 digits"), "{}", refused("7777777"));
    assert!(refused(&"8".repeat(64)).ends_with("; see it with kubectl driftless diff"));
    let mut early = shop.clone();
    early.annotations_mut().insert("driftless.dev/pull-requests".into(), "preview".into());
    // The plan of another hash counts if a pull request of the Stack shows it.
    let mut other = shop.clone();
    (other.metadata.name, other.spec.preview) = (Some("shop-17".into()), Some(true));
    let eights = "8".repeat(64);
    let plan_of = |stack: &mut Stack, change: &dyn Fn(&mut StackPlan)| {
        change(stack.status.as_mut().unwrap().driftless.as_mut().unwrap().plan.as_mut().unwrap());
    };
    let too_soon = request::approve(&early, &[], Some(&eights), "ann").unwrap_err().to_string();
    assert!(too_soon.ends_with("and the admission policy; try again in a minute"), "{too_soon}");
    plan_of(&mut early, &|plan| plan.takes_early_approvals = Some(true));
    plan_of(&mut other, &|plan| (plan.state, plan.hash) = (Some("Preview".into()), Some(eights.clone())));
    let approve = |other: &Stack| request::approve(&early, slice::from_ref(other), Some(&eights), "ann");
    let refused = approve(&other).unwrap_err().to_string();
    assert!(refused.ends_with("and no pull request of it shows that plan now"), "{refused}");
    other.annotations_mut().insert("driftless.dev/pull-request-of".into(), "shop".into());
    let approved = approve(&other).unwrap().done;
    assert!(approved.contains(", as ann: +") && approved.contains("; plan 8888888"), "{approved}");
    assert!(request::approve(&early, &[other], Some("8888888"), "ann").is_err());
    let none = request::approve(&stack("shop"), &[], None, "ann").unwrap_err().to_string();
    assert!(none.ends_with("has no plan that waits for an approval"), "{none}");
}

#[test]
fn request_output_names_its_effect() {
    let mut suspended = stack("web");
    suspended.annotations_mut().insert("driftless.dev/suspend".into(), "true".into());
    let done = [
        request::suspend(&stack("web")),
        request::cancel(&Target::Stack(Box::new(suspended))).unwrap(),
        request::resume(&stack("old")).unwrap(),
        request::reconcile(&stack("shop"), true, now()).unwrap(),
    ];
    let [suspend, cancel, resume, reconcile] = done.map(|request| request.done + "\n");
    golden("cancel-done", &(suspend + &cancel));
    golden("resume-done", &resume);
    golden("reconcile-done", &reconcile);
}

#[tokio::test]
async fn log_is_printed_whole() {
    let (mut printed, mut notes) = (String::new(), String::new());
    let cluster = support::cluster("team");
    log::print(&cluster, update("web-5a6b7c8d9e0f"), false, |text| printed += text, |note| notes += note).await.unwrap();
    golden("logs", &printed);
    assert_eq!(notes, "", "the log is there");
}

/// What a command prints, and its notes.
async fn printed(arguments: &[&str]) -> (driftless_cli::Result<()>, String, String) {
    let (mut out, mut notes) = (String::new(), String::new());
    let command = Arguments::try_parse_from([&["kubectl-driftless"], arguments].concat()).unwrap().command;
    let mut terminal = Terminal {
        program: "kubectl-driftless",
        style: PLAIN,
        has_desktop: false,
        now,
        out: &mut |text| out += text,
        note: &mut |note| notes.extend([note, "\n"]),
    };
    let done = Box::pin(in_cluster(&support::cluster("team"), command, &mut terminal)).await;
    (done, out, notes)
}

#[tokio::test]
async fn logs_of_the_last_runs_are_printed_the_newest_at_the_end() {
    let (done, out, notes) = printed(&["logs", "web", "--last", "2"]).await;
    assert_eq!(done, Ok(()));
    golden("logs-last", &out);
    assert!(notes.starts_with("Update web-3 has no log in the cluster; the whole log is at https://"), "{notes}");
    let (done, ..) = printed(&["logs", "update/web-3", "--last", "2"]).await;
    assert_eq!(done, Err(Error::failed("Update web-3 is one run; omit --last, or name its Stack")));
    let (done, ..) = printed(&["logs", "old", "--last", "2"]).await;
    assert_eq!(done, Err(Error::failed("Stack team/old has no Update; the logs of older runs were deleted")));
    assert!(Arguments::try_parse_from(["kubectl-driftless", "logs", "web", "--last", "0"]).is_err());
}

#[tokio::test]
async fn wait_prints_what_is_applied() {
    let (done, out, notes) = printed(&["wait", "shop", "--applied", "--commit", "7d1f0c2b"]).await;
    assert_eq!((done, notes.as_str()), (Ok(()), ""));
    golden("wait", &out);
}

#[test]
fn impossible_request_names_its_remedy() {
    let words = |request: driftless_cli::Result<request::Request>| request.unwrap_err().to_string();
    let by_spec = serde_json::from_value(serde_json::json!({ "suspend": true })).unwrap();
    let [mut suspended, mut previewed, mut failed] = [(); 3].map(|()| stack("old"));
    suspended.spec.driftless = Some(by_spec);
    previewed.spec.preview = Some(true);
    failed.status.as_mut().unwrap().last_update.as_mut().unwrap().state = Some("failed".into());
    assert!(request::adopt(&suspended).unwrap().done.ends_with("; it is suspended, so this waits until it is resumed"));
    let messages = [
        words(request::reconcile(&stack("network"), true, now())),
        words(request::resume(&suspended)),
        words(request::cancel(&Target::Stack(Box::new(stack("shop"))))),
        words(request::cancel(&Target::Update(Box::new(update("web-3"))))),
        words(request::remediate(&stack("network"), false)),
        words(request::remediate(&stack("shop"), false)),
        words(request::adopt(&stack("network"))),
        words(request::adopt(&stack("shop"))),
        words(request::adopt(&previewed)),
        words(request::remediate(&previewed, true)),
        words(request::adopt(&failed)),
        words(request::run(&stack("old"), Operation::Up, &RunSettings::default())),
    ];
    golden("refused", &(messages.join("\n") + "\n"));
}

#[test]
fn long_stack_name_leaves_room_for_a_generated_suffix() {
    let mut long = stack("shop");
    long.metadata.name = Some("a".repeat(253));
    let request = request::run(&long, Operation::Destroy, &RunSettings::default()).unwrap();
    let request::Change::Create(update) = &request.changes[0] else { unreachable!("an Update is created") };
    let prefix = update.metadata.generate_name.clone().unwrap();
    assert!(prefix.len() <= 58 && prefix.ends_with("-destroy-"), "{prefix}");
}

#[test]
fn commit_is_applied_once_its_update_succeeded() {
    let full = "7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918";
    let shop = stack("shop");
    for commit in [None, Some(full), Some(&full[..7]), Some("main@sha1:7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918")] {
        assert_eq!(wait::applied(&shop, commit), Ok(true), "{commit:?}");
    }
    for commit in ["7d1f0c", "0000000", &"0".repeat(40)] {
        assert_eq!(wait::applied(&shop, Some(commit)), Ok(false), "{commit}");
    }
    let mut edited = stack("shop");
    edited.metadata.generation = Some(4);
    assert_eq!(wait::applied(&edited, Some(full)), Ok(false), "the edit is not applied");
    assert_eq!(wait::applied(&stack("api"), None), Ok(false), "it never ran");
    assert_eq!(wait::applied(&stack("web"), None), Ok(false), "a run is in progress");
    let failed = wait::applied(&stack("network"), Some("2")).unwrap_err();
    assert_eq!(failed, Error::failed("Update network-4 failed: creating Vpc: limit exceeded"));
    assert_eq!(wait::applied(&stack("network"), Some("3")), Ok(false), "another commit failed");
    let mut by_platform = stack("network");
    let status = by_platform.status.as_mut().unwrap().driftless.as_mut().unwrap();
    status.platform_failures = Some(driftless_api::PlatformFailures { count: 1, fresh: false });
    assert_eq!(wait::applied(&by_platform, Some("2")), Ok(false), "the platform's failure is retried");
}

#[test]
fn followed_log_prints_each_part_once() {
    let data = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), format!("{key}\n"))).collect();
    let (text, last) = log::parts_after(&data(&["0001", "0002"]), None);
    assert_eq!((text.as_str(), last.as_deref()), ("0001\n0002\n", Some("0002")));
    let (text, last) = log::parts_after(&data(&["0000", "0002", "0003"]), last.as_deref());
    assert_eq!((text.as_str(), last.as_deref()), ("0003\n", Some("0003")));
    let (text, last) = log::parts_after(&data(&[]), last.as_deref());
    assert_eq!((text.as_str(), last.as_deref()), ("", Some("0003")));
    assert_eq!(log::of_stack(&stack("web")).as_deref(), Some("web-5a6b7c8d9e0f"));
    assert_eq!(log::of_stack(&stack("shop")).as_deref(), Some("shop-0c1d2e3f4a5b"));
    assert_eq!(log::of_stack(&stack("api")), None);
    golden("logs-absent", &(updates().iter().map(log::absent).collect::<Vec<_>>().join("\n") + "\n"));
}

#[test]
fn times_and_revisions_are_short() {
    let seconds = |seconds| span(jiff::SignedDuration::from_secs(seconds));
    let spans = [0, 59, 60, 90, 3600, 5400, 86_400, 100_000].map(seconds);
    assert_eq!(spans, ["0s", "59s", "1m", "1m30s", "1h", "1h30m", "1d", "1d3h"]);
    assert_eq!(age("2026-11-26T12:00:05Z".parse().unwrap(), now()), "0s", "the clocks differ");
    let hash = "7d1f0c2b9a8e6d5c4b3a29180f7e6d5c4b3a2918";
    for (revision, expected) in [
        (format!("main@sha1:{hash}"), "main@7d1f0c2b"),
        (format!("refs/heads/main@sha1:{hash}"), "refs/heads/main@7d1f0c2b"),
        (hash.to_owned(), "7d1f0c2b"),
        (format!("sha256:{}", "a1".repeat(32)), "a1a1a1a1"),
        ("2".into(), "generation 2"),
        ("6.5.0".into(), "6.5.0"),
        (String::new(), ""),
    ] {
        assert_eq!(short(&revision), expected, "{revision}");
    }
}

#[test]
fn status_of_a_tenant_does_nothing_to_the_terminal() {
    let mut hostile = stack("network");
    let condition = &mut hostile.status.as_mut().unwrap().conditions[1];
    condition.message = "\u{1b}]0;title\u{7}\u{1b}[2Jgone".into();
    let snapshot = facts_of(CoreStack::from(&hostile), false);
    let explanation = explain::stack(&snapshot, vec![Unknown::Tree], None, now());
    let shown = explain::render(&explanation, PLAIN, now()) + &tree::render(&tree::of(&hostile, None, &[], &[], now()), PLAIN);
    assert!(shown.contains("gone") && !shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn timeout_has_an_exit_code_of_its_own() {
    assert_eq!(format!("{:?}", Error::failed("").exit_code()), format!("{:?}", std::process::ExitCode::from(1)));
    assert_eq!(format!("{:?}", Error::TimedOut(String::new()).exit_code()), format!("{:?}", std::process::ExitCode::from(124)));
}

#[test]
fn command_line_is_consistent_and_completed() {
    Arguments::command().debug_assert();
    for shell in clap_complete::Shell::value_variants() {
        let script = completion(*shell, "kubectl-driftless");
        assert!(script.contains("explain") && script.contains("all-namespaces"), "{shell}");
    }
}

/// The names of the outputs on a page. Each is equal to its file, or is written with `BLESS=1`.
fn outputs(file: &Path) -> Vec<String> {
    let page = fs::read_to_string(file).unwrap();
    let mut parts = page.split("<!-- output: ");
    let mut expected = parts.next().unwrap().to_owned();
    let mut names = Vec::new();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n\n```text\n").unwrap();
        let (_, rest) = rest.split_once("```").unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
        let output = fs::read_to_string(golden).unwrap();
        expected.extend(["<!-- output: ", name, " -->\n\n```text\n", &output, "```", rest]);
        names.push(name.to_owned());
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(file, &expected).unwrap();
    }
    assert!(page == expected, "the page shows another output; BLESS=1 writes {}", file.display());
    names
}

#[test]
fn pages_show_what_the_commands_print() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let reference = fs::read_to_string(docs.join("cli.md")).unwrap();
    let mut shown = outputs(&docs.join("cli.md"));
    for task in fs::read_dir(docs.join("tasks")).unwrap() {
        let file = task.unwrap().path();
        let link = format!("](tasks/{})", file.file_name().unwrap().to_str().unwrap());
        assert!(reference.contains(&link), "docs/cli.md has no link to {}", file.display());
        shown.extend(outputs(&file));
    }
    assert!(shown.len() >= 10);
    shown.sort_unstable();
    assert!(shown.windows(2).all(|pair| pair[0] != pair[1]), "a page repeats an output: {shown:?}");
    let rows: Vec<_> = reference.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    // The output of these is a URL or a script.
    let without = ["ui", "completion"];
    for command in Arguments::command().get_subcommands() {
        let name = command.get_name();
        let is_shown = shown.iter().any(|output| output.starts_with(name)) || without.contains(&name);
        assert!(is_shown, "no page has an output of {name}");
        assert!(rows.iter().any(|row| row.contains(&format!("`{name}"))), "docs/cli.md has no row of {name}");
    }
}
