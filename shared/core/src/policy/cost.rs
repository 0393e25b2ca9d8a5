//! The evaluation steps of an expression, at worst. CEL always ends, but nested macros can take a
//! very long time.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, Expr, operators as op},
};

/// The sizes of a document that bound the steps.
pub(super) struct Sizes {
    /// The length of its longest list.
    pub changes: u64,
    /// The length of its longest list within a change.
    pub paths: u64,
    /// The number of all texts in it.
    pub texts: u64,
}

/// The variable that a macro collects its result in.
const RESULT: &str = "@result";
/// The longest list that an expression may write out.
const MAX_LITERALS: usize = 128;
/// The operators and functions that take no longer for a larger document.
const CONSTANT: [&str; 15] = [
    op::CONDITIONAL,
    op::LOGICAL_AND,
    op::LOGICAL_OR,
    op::LOGICAL_NOT,
    op::NOT_STRICTLY_FALSE,
    op::SUBSTRACT,
    op::MULTIPLY,
    op::DIVIDE,
    op::MODULO,
    op::NEGATE,
    op::INDEX,
    "size",
    "startsWith",
    "endsWith",
    "contains",
];
/// The operators that compare or copy their operands.
const BY_SIZE: [&str; 7] = [op::EQUALS, op::NOT_EQUALS, op::GREATER_EQUALS, op::LESS_EQUALS, op::GREATER, op::LESS, op::ADD];
/// The fields of a document that are lists within a change.
pub(super) const LISTS: [&str; 2] = ["properties", "replacedBy"];

/// The variables of a document that are no lists.
const SCALARS: [&str; 3] = ["operation", "unknown", "unstable"];

/// Returns the most steps that the evaluation may take; `Err` for an expression with something that
/// no rule needs.
pub(super) fn steps(expression: &IdedExpr, sizes: &Sizes) -> Result<u64, String> {
    let all =
        |parts: &[IdedExpr]| parts.iter().try_fold(1_u64, |sum, part| Ok::<_, String>(sum.saturating_add(steps(part, sizes)?)));
    match &expression.expr {
        Expr::Ident(_) | Expr::Literal(_) => Ok(1),
        Expr::Select(select) => Ok(steps(&select.operand, sizes)?.saturating_add(1)),
        Expr::List(list) if list.elements.len() > MAX_LITERALS => {
            Err(format!("a list has more than {MAX_LITERALS} elements; split the rule"))
        }
        Expr::List(list) => all(&list.elements),
        Expr::Call(call) => {
            let target = call.target.as_deref().map_or(Ok(0), |target| steps(target, sizes))?;
            Ok(all(&call.args)?.saturating_add(target).saturating_add(own(call, sizes)?))
        }
        Expr::Comprehension(comprehension) => {
            let ComprehensionExpr { iter_range, iter_var, accu_init, loop_cond, loop_step, result, .. } = &**comprehension;
            if SCALARS.contains(&iter_var.as_str()) {
                return Err(format!("the variable {iter_var:?} exists; give the variable of the macro another name"));
            }
            let each = steps(loop_cond, sizes)?.saturating_add(steps(loop_step, sizes)?);
            let once = steps(iter_range, sizes)?.saturating_add(steps(accu_init, sizes)?).saturating_add(steps(result, sizes)?);
            Ok(each.saturating_mul(length(iter_range, sizes)).saturating_add(once))
        }
        Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => Err("the expression makes a map; no rule needs one".into()),
    }
}

/// The steps of a call without those of its arguments.
fn own(call: &CallExpr, sizes: &Sizes) -> Result<u64, String> {
    let name = call.func_name.as_str();
    let has_scalar = call.args.iter().any(is_scalar);
    match name {
        _ if CONSTANT.contains(&name) => Ok(1),
        // Joined texts grow.
        op::ADD if has_scalar && !call.args.iter().any(|arg| matches!(arg.expr, Expr::Literal(_))) => Ok(sizes.texts),
        _ if BY_SIZE.contains(&name) && has_scalar => Ok(1),
        op::ADD if !call.args.iter().any(|arg| matches!(&arg.expr, Expr::Ident(name) if name == RESULT)) => {
            Err("the expression joins two lists; no rule needs that".into())
        }
        op::ADD => Ok(sizes.changes),
        op::IN if call.args.first().is_some_and(is_scalar) => Ok(call.args.last().map_or(1, |list| length(list, sizes))),
        op::IN => Ok(sizes.texts),
        _ if BY_SIZE.contains(&name) => Ok(sizes.texts),
        _ => Err(format!("the function {name:?} does not exist")),
    }
}

/// The most elements of a list.
fn length(list: &IdedExpr, sizes: &Sizes) -> u64 {
    match &list.expr {
        Expr::Select(select) if LISTS.contains(&select.field.as_str()) => sizes.paths,
        Expr::List(list) => u64::try_from(list.elements.len()).unwrap_or(u64::MAX),
        _ => sizes.changes,
    }
}

/// Returns whether it is certainly no list. No document has a list in another field than [`LISTS`].
fn is_scalar(expression: &IdedExpr) -> bool {
    match &expression.expr {
        Expr::Literal(_) => true,
        Expr::Ident(name) => SCALARS.contains(&name.as_str()),
        Expr::Select(select) => !LISTS.contains(&select.field.as_str()),
        Expr::Call(call) if call.func_name == op::ADD => call.args.iter().any(is_scalar),
        Expr::Call(call) => call.func_name == "size",
        _ => false,
    }
}
