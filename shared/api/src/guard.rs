//! The admission policy that enforces who may approve, compared with the one that this release
//! ships.

use std::sync::LazyLock;

use driftless_core::Guard;
use kube::core::DynamicObject;
use serde_json::Value;

/// The policy and its binding, as shipped.
static SHIPPED: LazyLock<Vec<Value>> =
    LazyLock::new(|| serde_saphyr::from_multiple(include_str!("../../../infra/kubernetes/approval.yaml")).unwrap_or_default());
/// The name of both.
pub const POLICY: &str = "driftless-approval";

/// Compares the policy and its binding with those that are shipped. `None` for an object that does
/// not exist.
#[must_use]
pub fn guard(policy: Option<&DynamicObject>, binding: Option<&DynamicObject>) -> Guard {
    for (kind, found) in [("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)] {
        let Some(found) = found else { return Guard::Broken(format!("{kind} {POLICY:?} does not exist")) };
        let wanted = SHIPPED.iter().find(|object| object["kind"] == kind);
        if wanted.is_none_or(|wanted| wanted["spec"] != found.data["spec"]) {
            return Guard::Broken(format!("{kind} {POLICY:?} is not as this release ships it"));
        }
        if found.metadata.deletion_timestamp.is_some() {
            return Guard::Broken(format!("{kind} {POLICY:?} is being deleted"));
        }
    }
    Guard::Intact
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_shipped_policy_and_binding_guard_a_cluster() {
        let [policy, binding, _] = SHIPPED.as_slice() else { panic!("{}", SHIPPED.len()) };
        let object = |value: &Value| serde_json::from_value::<DynamicObject>(value.clone()).unwrap();
        let guard =
            |policy: Option<&Value>, binding: Option<&Value>| guard(policy.map(object).as_ref(), binding.map(object).as_ref());
        assert_eq!(guard(Some(policy), Some(binding)), Guard::Intact);
        let why = |policy: Option<&Value>, binding: Option<&Value>| match guard(policy, binding) {
            Guard::Broken(why) => why,
            Guard::Intact => panic!("it guards nothing"),
        };
        assert_eq!(why(None, Some(binding)), "ValidatingAdmissionPolicy \"driftless-approval\" does not exist");
        assert_eq!(why(Some(policy), None), "ValidatingAdmissionPolicyBinding \"driftless-approval\" does not exist");
        let changed = |object: &Value, path: &str, value: Value| {
            let mut object = object.clone();
            object["spec"][path] = value;
            object
        };
        for weak in [
            changed(policy, "failurePolicy", json!("Ignore")),
            changed(policy, "matchConditions", json!([{ "name": "never", "expression": "false" }])),
            changed(policy, "validations", json!([])),
        ] {
            assert!(why(Some(&weak), Some(binding)).ends_with("is not as this release ships it"));
        }
        for weak in [changed(binding, "validationActions", json!(["Audit"])), changed(binding, "matchResources", json!({}))] {
            assert!(why(Some(policy), Some(&weak)).ends_with("is not as this release ships it"));
        }
    }
}
