//! What `infra/preflight` decides. moto has neither Lambda's account settings nor Fargate's quota, so answers of AWS are files here.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Command};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::project;

/// Prints the answer to `aws SERVICE OPERATION`, for a quota the answer to its code if there is one; a text is an error.
const AWS: &str = "#!/bin/sh\nfile=$ANSWERS/$1.$2\n[ ! -e \"$file.$6\" ] || file=$file.$6\nread -r answer <\"$file\"\ncase $answer in\n\\\"*) echo \"$answer\" >&2; exit 254;;\nesac\necho \"$answer\"\n";

type Answers = BTreeMap<&'static str, Value>;

const QUOTA: &str = "service-quotas.get-service-quota";
const SPOT_QUOTA: &str = "service-quotas.get-service-quota.L-36FBB829";

/// An account that fits: private subnets behind NAT in two zones.
fn account() -> Answers {
    let route = json!({ "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active" });
    let subnet = |id: &str, zone: &str| json!({ "SubnetId": id, "VpcId": "vpc-1", "AvailabilityZone": zone });
    BTreeMap::from([
        ("lambda.get-account-settings", limit(1000, 1000)),
        (QUOTA, quota(6.0)),
        ("iam.get-role", json!({ "Role": {} })),
        ("ec2.describe-subnets", json!({ "Subnets": [subnet("subnet-1", "a"), subnet("subnet-2", "b")] })),
        ("ec2.describe-security-groups", json!({ "SecurityGroups": [{ "GroupId": "sg-1", "VpcId": "vpc-1" }] })),
        ("ec2.describe-route-tables", tables(&route)),
        ("ec2.describe-vpc-endpoints", json!({ "VpcEndpoints": [] })),
    ])
}

fn limit(total: u32, unreserved: u32) -> Value {
    json!({ "AccountLimit": { "ConcurrentExecutions": total, "UnreservedConcurrentExecutions": unreserved } })
}

fn quota(vcpus: f64) -> Value {
    json!({ "Quota": { "Value": vcpus } })
}

/// The VPC's main route table with one route.
fn tables(route: &Value) -> Value {
    json!({ "RouteTables": [{ "VpcId": "vpc-1", "Associations": [{ "Main": true }], "Routes": [route] }] })
}

fn internet() -> Value {
    tables(&json!({ "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active" }))
}

/// Whether the deployment goes on, which parameters are chosen, and all that is said.
fn preflight(answers: &Answers, arguments: &[&str]) -> Result<(bool, String, String)> {
    let dir = TempDir::new()?;
    for (call, answer) in answers {
        fs::write(dir.path().join(call), format!("{answer}\n"))?;
    }
    let aws = dir.path().join("aws");
    fs::write(&aws, AWS)?;
    fs::set_permissions(&aws, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(project()?.join("infra/preflight"));
    command.current_dir(project()?).env("ANSWERS", dir.path()).env("AWS_CLI", aws);
    let values = ["Subnets=subnet-1,subnet-2", "SecurityGroups=sg-1", "AssignPublicIp=DISABLED", "TaskCpu=1024", "Spot=previews"];
    // Of two values of a parameter the last one is used.
    let (overrides, options): (Vec<&str>, Vec<&str>) = arguments.iter().partition(|argument| argument.contains('='));
    command.args(options).args(values).args(["WebhookConcurrency=5", "PublicWebhook=ENABLED", "ReconcilerConcurrency=10"]);
    command.args(["FetcherConcurrency=10", "LauncherConcurrency=5", "RecorderConcurrency=5"]);
    let output = command.args(overrides).output()?;
    let [chosen, said] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((output.status.success(), chosen, said))
}

#[test]
fn an_account_that_fits_is_deployed_to_as_it_is() -> Result<()> {
    let (goes_on, chosen, said) = preflight(&account(), &["--new"])?;
    assert!(goes_on && chosen.is_empty(), "{said}");
    for line in [
        "Lambda: 1000 ",
        "Fargate: 6 vCPUs are 6 tasks ",
        "Fargate Spot: 6 vCPUs are 6 tasks ",
        "ECS: the service-linked role is there",
        "tasks: vpc-1, zones a, b",
    ] {
        assert!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
    }
    Ok(())
}

#[test]
fn parameters_are_chosen_that_fit_the_account() -> Result<()> {
    for (call, answer, expected) in [
        ("lambda.get-account-settings", limit(50, 50), "WebhookConcurrency=0\n"),
        ("ec2.describe-route-tables", internet(), "AssignPublicIp=ENABLED\n"),
    ] {
        let mut answers = account();
        answers.insert(call, answer);
        let (goes_on, chosen, said) = preflight(&answers, &["--new"])?;
        assert!(goes_on && chosen == expected, "{chosen}{said}");
        // What the user chose stays, and does not fit.
        let name = expected.split('=').next().context("a name")?;
        let (goes_on, chosen, said) = preflight(&answers, &["--new", "--given", name])?;
        assert!(!goes_on && chosen.is_empty() && said.contains(&format!("PARAMETERS={}", expected.trim_end())), "{said}");
    }
    Ok(())
}

#[test]
fn what_could_not_work_is_refused_with_its_remedy() -> Result<()> {
    let other = json!({ "SecurityGroups": [{ "GroupId": "sg-1", "VpcId": "vpc-2" }] });
    for (call, answer, words) in [
        ("lambda.get-account-settings", limit(10, 9), "--service-code lambda --quota-code L-B99A9384 --desired-value 1000"),
        (QUOTA, quota(0.0), "--service-code fargate --quota-code L-3032A538"),
        ("ec2.describe-subnets", json!("An error occurred (InvalidSubnetID.NotFound)"), "of this account and Region"),
        (
            "ec2.describe-security-groups",
            other,
            "are of several VPCs; no task could start: subnet-1 in vpc-1, subnet-2 in vpc-1, sg-1 in vpc-2",
        ),
        ("ec2.describe-route-tables", json!({ "RouteTables": [] }), "no VPC endpoints for ecr.api, ecr.dkr, logs, s3, sts"),
    ] {
        let mut answers = account();
        answers.insert(call, answer);
        let (goes_on, chosen, said) = preflight(&answers, &["--new"])?;
        assert!(!goes_on && chosen.is_empty() && said.contains(words), "{words:?} is not in: {said}");
    }
    Ok(())
}

#[test]
fn what_may_not_be_read_is_a_warning() -> Result<()> {
    let denied = json!("An error occurred (AccessDenied) when calling it");
    let answers = account().into_keys().map(|call| (call, denied.clone())).collect();
    let (goes_on, chosen, said) = preflight(&answers, &["--new"])?;
    assert!(goes_on && chosen.is_empty(), "{said}");
    assert_eq!(said.matches("deploy: warning: ").count(), 5, "{said}");
    Ok(())
}

#[test]
fn new_account_gets_concurrency_that_fits() -> Result<()> {
    let mut answers = account();
    let least = "ReconcilerConcurrency=2\nFetcherConcurrency=2\nLauncherConcurrency=2\nRecorderConcurrency=2\n";
    let even = least.replace('2', "4");
    for (free, expected) in [(10, least), (20, even.as_str()), (34, "")] {
        answers.insert("lambda.get-account-settings", limit(free, free));
        let (goes_on, chosen, said) = preflight(&answers, &["--new"])?;
        assert!(goes_on && chosen == format!("{expected}WebhookConcurrency=0\n"), "{free}: {chosen}{said}");
        assert!(said.contains("--quota-code L-B99A9384 --desired-value 1000"), "{said}");
        assert_eq!(said.contains("sweeps and webhook calls are then retried"), free == 10, "{said}");
    }
    // Neither what the user chose nor a stack that is there is changed.
    answers.insert("lambda.get-account-settings", limit(10, 10));
    for arguments in [&["--new", "--given", "FetcherConcurrency"][..], &[]] {
        let (goes_on, chosen, said) = preflight(&answers, arguments)?;
        let remedy = format!("PARAMETERS='{}'", least.trim_end().replace('\n', " "));
        assert!(!goes_on && chosen.is_empty() && said.contains(&remedy), "{remedy} is not in: {said}");
    }
    answers.insert("lambda.get-account-settings", limit(10, 9));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(!goes_on && !said.contains("PARAMETERS="), "{said}");
    Ok(())
}

#[test]
fn spot_quota_is_checked_where_spot_is_used() -> Result<()> {
    let mut answers = account();
    let denied = json!("An error occurred (AccessDeniedException) when calling GetServiceQuota");
    let remedy = "--service-code fargate --quota-code L-36FBB829 --desired-value 100";
    for (answer, words) in [
        (quota(0.0), remedy),
        (quota(0.5), "PARAMETERS=Spot=never"),
        (denied, "warning: the quota of Fargate Spot is not known: \"An error occurred (AccessDenied"),
        (json!({ "Quota": {} }), "warning: the quota of Fargate Spot is not known: "),
    ] {
        answers.insert(SPOT_QUOTA, answer);
        let (goes_on, chosen, said) = preflight(&answers, &["--new"])?;
        assert!(goes_on && chosen.is_empty() && said.contains(words), "{words:?} is not in: {said}");
        assert_eq!(said.matches("deploy: warning: ").count(), 1, "{said}");
        let (_, _, said) = preflight(&answers, &["--new", "Spot=never"])?;
        assert!(!said.contains("Spot"), "{said}");
    }
    answers.insert(QUOTA, json!({ "Quota": {} }));
    let (goes_on, _, said) = preflight(&answers, &["--new", "Spot=never"])?;
    assert!(goes_on && said.contains("warning: the quota of Fargate is not known: "), "{said}");
    Ok(())
}

#[test]
fn endpoints_in_place_of_a_way_to_the_internet_are_enough() -> Result<()> {
    let mut answers = account();
    let table = json!({ "VpcId": "vpc-1", "RouteTableId": "rtb-1", "Associations": [{ "Main": true }], "Routes": [] });
    answers.insert("ec2.describe-route-tables", json!({ "RouteTables": [table] }));
    let with_s3_for = |table: &str| {
        let name = |name: &str| format!("com.amazonaws.eu-west-1.{name}");
        let interface = |service| json!({ "ServiceName": name(service), "VpcEndpointType": "Interface" });
        let mut endpoints: Vec<_> = ["ecr.api", "ecr.dkr", "logs", "sts"].map(interface).into();
        endpoints.push(json!({ "ServiceName": name("s3"), "VpcEndpointType": "Gateway", "RouteTableIds": [table] }));
        json!({ "VpcEndpoints": endpoints })
    };
    answers.insert("ec2.describe-vpc-endpoints", with_s3_for("rtb-2"));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(!goes_on && said.contains("no VPC endpoints for s3\n"), "{said}");
    answers.insert("ec2.describe-vpc-endpoints", with_s3_for("rtb-1"));
    answers.insert("iam.get-role", json!("An error occurred (NoSuchEntity) when calling GetRole"));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(goes_on && said.contains("by VPC endpoints alone") && said.contains("create-service-linked-role"), "{said}");
    Ok(())
}
