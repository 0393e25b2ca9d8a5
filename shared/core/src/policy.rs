//! Plan policies: the rules of a cluster about the plans of its Stacks, in CEL. A rule that cannot
//! be evaluated denies.

mod cost;
mod document;

use cel::{Context, Value, parser::Parser};

use self::{cost::Sizes, document::Document};
use crate::{PlanPolicy, PlannedChanges, RuleAction, Stack, bound};

/// The maximum length of an expression, in bytes.
pub const MAX_EXPRESSION_BYTES: usize = 1024;
/// The nesting of an expression that the parser follows: its stack is that of a function.
const MAX_DEPTH: u16 = 24;
/// The evaluation steps that all rules of a plan may take together, at worst: a bound for the time
/// of a reconciliation.
const MAX_STEPS: u64 = 10_000_000;
/// The maximum length of a text of a rule in a message, in bytes.
const MAX_MESSAGE_BYTES: usize = 256;

/// What the rules say about a plan. Each text names policy and rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// Why it must not be applied.
    pub denials: Vec<String>,
    /// Why it needs an approval.
    pub demands: Vec<String>,
    /// What users are told.
    pub warnings: Vec<String>,
}

/// Applies the rules to a plan.
pub(crate) fn judge(policies: &[PlanPolicy], stack: &Stack, plan: &PlannedChanges) -> Judgement {
    let mut judgement = Judgement { warnings: plan.advice.clone(), ..Judgement::default() };
    let document = Document::of(stack, plan);
    let mut steps = MAX_STEPS;
    for policy in policies {
        let rules = match &policy.rules {
            Ok(rules) => rules,
            Err(why) => {
                judgement.denials.push(format!("PlanPolicy {:?} cannot be read: {}", policy.name, shown(why)));
                continue;
            }
        };
        for rule in rules {
            let of = format!("PlanPolicy {:?}, rule {:?}", policy.name, rule.name);
            let list = match (evaluate(&rule.expression, &document, &mut steps), rule.action) {
                (Ok(false), _) => continue,
                (Ok(true), RuleAction::Deny) => &mut judgement.denials,
                (Ok(true), RuleAction::RequireApproval) => &mut judgement.demands,
                (Ok(true), RuleAction::Warn) => &mut judgement.warnings,
                (Err(why), _) => {
                    judgement.denials.push(format!("{of} cannot be evaluated: {}", shown(&why)));
                    continue;
                }
            };
            let message = if rule.message.is_empty() { &rule.expression } else { &rule.message };
            list.push(format!("{of}: {}", shown(message)));
        }
    }
    judgement
}

/// Evaluates an expression, at the cost of its steps. `Err` says why it has no result.
fn evaluate(expression: &str, document: &Document<'_>, steps: &mut u64) -> Result<bool, String> {
    if expression.len() > MAX_EXPRESSION_BYTES {
        return Err(format!("the expression has more than {MAX_EXPRESSION_BYTES} bytes; split the rule"));
    }
    let parsed = Parser::new().max_recursion_depth(MAX_DEPTH).error_recovery_limit(1).parse(expression).map_err(|errors| {
        let first = errors.errors.first().map(|error| format!("{} at {}:{}", error.msg, error.pos.0, error.pos.1));
        format!("the expression is not CEL: {}", first.unwrap_or_default())
    })?;
    let needed = cost::steps(&parsed, &document.sizes)?;
    *steps = steps.checked_sub(needed).ok_or_else(|| {
        let Sizes { changes, .. } = document.sizes;
        format!("the expressions are too expensive for a plan with {changes} changes; nest fewer macros")
    })?;
    let failed = |error: &dyn ToString| error.to_string();
    let mut context = Context::default();
    document.declare(&mut context).map_err(|error| failed(&error))?;
    match Value::resolve(&parsed, &context).map_err(|error| failed(&error))? {
        // A change that is not in the list may be the one that the rule is about.
        Value::Bool(false) if parsed.references().has_variable(document::CHANGES) => {
            document.cut.as_ref().map_or(Ok(false), |why| Err(why.clone()))
        }
        Value::Bool(is_true) => Ok(is_true),
        other => Err(format!("the result is of type {:?}, not a bool", other.type_of())),
    }
}

/// A text in a message.
fn shown(text: &str) -> String {
    bound::line(text, MAX_MESSAGE_BYTES)
}

#[cfg(test)]
mod tests;
