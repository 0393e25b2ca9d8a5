use jiff::Timestamp;

use super::*;
use crate::{ChangeKind, Listed, Operation, PlanHash, PlanParts, PlanRule, PlannedChange};

fn change(kind: ChangeKind, urn: &str, resource_type: &str, paths: &[&str]) -> PlannedChange {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    PlannedChange { urn: urn.into(), resource_type: resource_type.into(), kind, replaced_by: paths.clone(), paths }
}

/// A plan that replaces a database and creates a bucket.
fn plan() -> PlannedChanges {
    let hash = PlanHash::parse(&"a".repeat(64)).unwrap();
    let changes = vec![
        change(
            ChangeKind::Replace,
            "urn:pulumi:dev::shop::my:Net$aws:rds/instance:Instance::db",
            "aws:rds/instance:Instance",
            &["engine", "tags.owner"],
        ),
        change(ChangeKind::Create, "urn:pulumi:dev::shop::aws:s3/bucket:Bucket::logs", "aws:s3/bucket:Bucket", &[]),
    ];
    PlannedChanges {
        hash: hash.clone(),
        parts: PlanParts {
            version: 1,
            binding: hash.clone(),
            resources: hash.clone(),
            state: hash,
            pulumi: "v3".into(),
            tree: None,
        },
        operation: Operation::Up,
        counts: [(ChangeKind::Replace, 1), (ChangeKind::Create, 1)].into(),
        changes: Listed { count: 2, first: changes },
        unknown: Listed::default(),
        unstable: Listed::default(),
        advice: Vec::new(),
        made_at: Timestamp::UNIX_EPOCH,
    }
}

fn stack() -> Stack {
    let mut stack = Stack { namespace: "team-a".into(), name: "shop".into(), ..Stack::default() };
    stack.spec.stack = "acme/shop/dev".into();
    stack
}

fn eval(expression: &str, plan: &PlannedChanges) -> Result<bool, String> {
    evaluate(expression, &Document::of(&stack(), plan), &mut MAX_STEPS.clone())
}

#[test]
fn expressions_see_the_stack_and_every_change() {
    for (expression, expected) in [
        ("counts.replace > 0 && counts.delete == 0 && counts['import'] == 0", true),
        ("changes.exists(c, c.kind == 'replace' && c.type == 'aws:rds/instance:Instance')", true),
        ("changes.exists(c, c.type.startsWith('aws:iam/') && c.kind in ['create', 'update'])", false),
        ("changes.exists(c, c.name == 'db' && 'engine' in c.replacedBy)", true),
        ("changes.exists(c, c.properties.exists(p, p.startsWith('tags.')))", true),
        ("changes.filter(c, c.kind == 'create').size() == 1 && size(changes) == 2", true),
        ("stack.namespace == 'team-a' && stack.name == 'shop' && stack.stack == 'acme/shop/dev'", true),
        ("operation == 'up' && unknown + unstable == 0", true),
        ("changes.all(c, c.urn.contains('::shop::'))", true),
    ] {
        assert_eq!(eval(expression, &plan()), Ok(expected), "{expression}");
    }
}

#[test]
fn rule_that_cannot_be_evaluated_says_why() {
    for (expression, words) in [
        ("changes.", "the expression is not CEL: "),
        ("counts.destroyed > 0", "No such key: destroyed"),
        ("secrets == 1", "Undeclared reference to 'secrets'"),
        ("counts.delete", "the result is of type Int, not a bool"),
        ("changes.exists(c, c.urn.matches('(a+)+$'))", "the function \"matches\" does not exist"),
        ("changes.all(unknown, unknown != stack)", "the variable \"unknown\" exists"),
        ("{'a': changes}.a == []", "the expression makes a map"),
        ("(changes + changes).size() > 3", "the expression joins two lists"),
        (&format!("operation == '{}'", "x".repeat(2000)), "the expression has more than 1024 bytes"),
        (&format!("[{}1].size() > 0", "1,".repeat(200)), "a list has more than 128 elements"),
        (&format!("{}true{}", "(".repeat(400), ")".repeat(400)), "the expression is not CEL: "),
        (&format!("{}true", "true?true:".repeat(90)), "the expression is not CEL: "),
    ] {
        let why = eval(expression, &plan()).unwrap_err();
        assert!(why.starts_with(words), "{expression}: {why}");
    }
}

#[test]
fn long_chains_of_operators_end() {
    let chains =
        ["1".to_owned() + &"+1".repeat(500) + " > 0", "!".repeat(1000) + "true", "true".to_owned() + &"&&true".repeat(160)];
    for chain in chains {
        assert_eq!(eval(&chain, &plan()), Ok(true), "{chain}");
    }
}

/// A plan with as many changes as are kept.
fn large() -> PlannedChanges {
    let mut plan = plan();
    let change = |number| change(ChangeKind::Update, &format!("urn:pulumi:dev::shop::a:b:C::{number}"), "a:b:C", &["a", "b"]);
    plan.changes.first = (0..PlannedChanges::MAX_CHANGES).map(change).collect();
    plan.changes.count = u32::try_from(PlannedChanges::MAX_CHANGES).unwrap();
    plan.counts = [(ChangeKind::Update, plan.changes.count)].into();
    plan
}

#[test]
fn expensive_expressions_are_refused_for_a_large_plan() {
    for useful in [
        "changes.exists(c, c.properties.exists(p, p == 'x'))",
        "changes.exists(c, 'x' in c.properties && c.type in ['a', 'b', 'c'])",
        "changes.map(c, c.name).size() > 2000",
    ] {
        assert_eq!(eval(useful, &large()), Ok(false), "{useful}");
    }
    for hostile in [
        "changes.all(a, changes.all(b, changes.all(c, a.urn != c.urn || b.urn != c.urn)))",
        "changes.all(a, changes.all(b, changes != []))",
        "changes.all(a, a in changes && changes == changes)",
        "changes.all(a, (a.urn + a.urn + a.urn + a.urn + a.urn + a.urn) != '')",
        "changes.map(a, changes.map(b, b.name)).size() > 0",
        "[changes].all(l, l.all(a, l.all(b, l.all(c, a.urn != c.urn))))",
    ] {
        let why = eval(hostile, &large()).unwrap_err();
        assert!(why.starts_with("the expressions are too expensive for a plan with 1000 changes"), "{hostile}: {why}");
    }
    // All rules of a plan share the steps.
    let rule = |number| PlanRule {
        name: format!("r{number}"),
        expression: "changes.exists(a, changes.exists(b, false))".into(),
        action: RuleAction::Warn,
        message: String::new(),
    };
    let policies = [PlanPolicy { name: "p".into(), rules: Ok((0..9).map(rule).collect()), packs: Vec::new() }];
    let denials = judge(&policies, &stack(), &large()).denials;
    assert!(!denials.is_empty() && denials.iter().all(|denial| denial.contains("too expensive")), "{denials:?}");
}

#[test]
fn part_of_a_plan_satisfies_no_rule_about_its_changes() {
    let mut cut = plan();
    cut.changes.count = 5000;
    let iam = "changes.exists(c, c.type.startsWith('aws:iam/'))";
    let why = eval(iam, &cut).unwrap_err();
    assert!(why.starts_with("the plan has 5000 changes, and rules see the first 2 only"), "{why}");
    // A listed change already decides, and counts are complete.
    assert_eq!(eval("changes.exists(c, c.name == 'db')", &cut), Ok(true));
    assert_eq!(eval("counts.delete > 0", &cut), Ok(false));
    let mut long = plan();
    long.changes.first[0].paths = vec!["p".into(); PlannedChanges::MAX_PATHS];
    assert!(eval(iam, &long).unwrap_err().contains("more properties than rules see"));
    let mut old = plan();
    old.changes.first[0].resource_type.clear();
    assert!(eval(iam, &old).unwrap_err().contains("older release"));
}

#[test]
fn name_of_a_resource_hides_no_type() {
    let mut plan = plan();
    // The program chose the name, and a component's type, so that the URN reads like another one.
    plan.changes.first[0] = change(
        ChangeKind::Delete,
        "urn:pulumi:dev::shop::x::y:z:C$aws:rds/instance:Instance::db::aws:s3/bucket:Bucket::logs",
        "aws:rds/instance:Instance",
        &[],
    );
    assert_eq!(eval("changes.exists(c, c.kind == 'delete' && c.type == 'aws:rds/instance:Instance')", &plan), Ok(true));
    assert_eq!(eval("changes.exists(c, c.name == 'db::aws:s3/bucket:Bucket::logs')", &plan), Ok(true));
}

#[test]
fn rules_deny_demand_and_warn_by_name() {
    let rule = |name: &str, expression: &str, action, message: &str| PlanRule {
        name: name.into(),
        expression: expression.into(),
        action,
        message: message.into(),
    };
    let prod = vec![
        rule("no-db", "changes.exists(c, c.type.contains('rds'))", RuleAction::Deny, "databases are replaced by hand"),
        rule("replaces", "counts.replace > 0", RuleAction::RequireApproval, ""),
        rule("creates", "counts.create > 0", RuleAction::Warn, "new\nresource"),
        rule("deletes", "counts.delete > 0", RuleAction::Deny, "never"),
        rule("broken", "counts.delete >", RuleAction::Warn, "never"),
    ];
    let policies = [
        PlanPolicy { name: "prod".into(), rules: Ok(prod), packs: Vec::new() },
        PlanPolicy { name: "new".into(), rules: Err("unknown action".into()), packs: Vec::new() },
    ];
    let advice = vec!["policy \"old\" of pack \"aws\": urn:a".to_owned()];
    let Judgement { denials, demands, warnings } = judge(&policies, &stack(), &PlannedChanges { advice, ..plan() });
    assert_eq!(denials[0], "PlanPolicy \"prod\", rule \"no-db\": databases are replaced by hand");
    assert!(denials[1].starts_with("PlanPolicy \"prod\", rule \"broken\" cannot be evaluated: the expression is not CEL"));
    assert_eq!(denials[2..], ["PlanPolicy \"new\" cannot be read: unknown action"]);
    assert_eq!(demands, ["PlanPolicy \"prod\", rule \"replaces\": counts.replace > 0"]);
    assert_eq!(warnings, ["policy \"old\" of pack \"aws\": urn:a", "PlanPolicy \"prod\", rule \"creates\": new resource"]);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// A panic would end the function.
    #[test]
    fn no_expression_panics(expression in "[ -~é\\n]{0,60}|([a-c(){}\\[\\].,:?!<>=&|+*/%'\"0-9-]|changes|exists|true){0,30}") {
        drop(eval(&expression, &plan()));
    }
}
