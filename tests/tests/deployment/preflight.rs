//! The decisions of `infra/preflight`. moto has neither Lambda's account settings nor Fargate's
//! quota, so AWS's answers are files here.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, process::Command};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::project;

/// Prints the answer to `aws SERVICE OPERATION`, or to a quota's code if there is one; a text is an
/// error.
const AWS: &str = "#!/bin/sh\nfile=$ANSWERS/$1.$2\n[ ! -e \"$file.$6\" ] || file=$file.$6\nread -r answer <\"$file\"\ncase $answer in\n\\\"*) echo \"$answer\" >&2; exit 254;;\nesac\necho \"$answer\"\n";

type Answers = BTreeMap<&'static str, Value>;

const QUOTA: &str = "service-quotas.get-service-quota";
const SPOT_QUOTA: &str = "service-quotas.get-service-quota.L-36FBB829";
const SERVICES: [&str; 5] = ["ecr.api", "ecr.dkr", "logs", "s3", "sts"];

/// A suitable account: private subnets behind NAT in two zones.
fn account() -> Answers {
    let route = json!({ "DestinationCidrBlock": "0.0.0.0/0", "NatGatewayId": "nat-1", "State": "active" });
    let subnet = |number: u8, zone: &str| {
        let id = format!("subnet-{number}");
        json!({ "SubnetId": id, "VpcId": "vpc-1", "AvailabilityZone": zone, "CidrBlock": format!("10.0.{number}.0/24") })
    };
    BTreeMap::from([
        ("lambda.get-account-settings", limit(1000, 1000)),
        (QUOTA, quota(6.0)),
        ("iam.get-role", json!({ "Role": {} })),
        ("ec2.describe-subnets", json!({ "Subnets": [subnet(1, "a"), subnet(2, "b")] })),
        ("ec2.describe-security-groups", groups(&[("sg-1", &[everything()])])),
        ("ec2.describe-route-tables", tables(&route)),
        ("ec2.describe-vpc-endpoints", json!({ "VpcEndpoints": [] })),
        ("eks.describe-cluster", eks(&json!({}))),
    ])
}

fn limit(total: u32, unreserved: u32) -> Value {
    json!({ "AccountLimit": { "ConcurrentExecutions": total, "UnreservedConcurrentExecutions": unreserved } })
}

fn quota(vcpus: f64) -> Value {
    json!({ "Quota": { "Value": vcpus } })
}

/// Security groups with their egress rules.
fn groups(groups: &[(&str, &[Value])]) -> Value {
    let group = |(id, egress): &(_, &[Value])| json!({ "GroupId": id, "VpcId": "vpc-1", "IpPermissionsEgress": egress });
    json!({ "SecurityGroups": groups.iter().map(group).collect::<Vec<_>>() })
}

/// The egress rule of a new security group.
fn everything() -> Value {
    json!({ "IpProtocol": "-1", "IpRanges": [{ "CidrIp": "0.0.0.0/0" }] })
}

/// An egress rule for a range of TCP ports.
fn tcp(from: u16, to: u16, cidr: &str) -> Value {
    json!({ "IpProtocol": "tcp", "FromPort": from, "ToPort": to, "IpRanges": [{ "CidrIp": cidr }] })
}

/// An interface endpoint that tasks can use.
fn interface(service: &str) -> Value {
    json!({ "VpcEndpointId": format!("vpce-{service}"), "ServiceName": format!("com.amazonaws.eu-west-1.{service}"),
        "VpcEndpointType": "Interface", "State": "available", "PrivateDnsEnabled": true })
}

/// An account whose subnets have no default route, with these endpoints.
fn without_internet(endpoints: &[Value]) -> Answers {
    let mut answers = account();
    let table = json!({ "VpcId": "vpc-1", "RouteTableId": "rtb-1", "Associations": [{ "Main": true }], "Routes": [] });
    answers.insert("ec2.describe-route-tables", json!({ "RouteTables": [table] }));
    answers.insert("ec2.describe-vpc-endpoints", json!({ "VpcEndpoints": endpoints }));
    answers
}

/// An EKS cluster with these differences from a new one.
fn eks(changes: &Value) -> Value {
    let mut network = json!({ "vpcId": "vpc-7", "clusterSecurityGroupId": "sg-7", "endpointPublicAccess": true,
        "endpointPrivateAccess": true, "publicAccessCidrs": ["0.0.0.0/0"] });
    for (name, value) in changes.as_object().into_iter().flatten() {
        network[name] = value.clone();
    }
    json!({ "cluster": { "resourcesVpcConfig": network } })
}

/// The VPC's main route table with one route.
fn tables(route: &Value) -> Value {
    json!({ "RouteTables": [{ "VpcId": "vpc-1", "Associations": [{ "Main": true }], "Routes": [route] }] })
}

fn internet() -> Value {
    tables(&json!({ "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active" }))
}

/// Returns whether the deployment continues, the chosen parameters, and the output.
fn preflight(answers: &Answers, arguments: &[&str]) -> Result<(bool, String, String)> {
    let dir = TempDir::new()?;
    for (call, answer) in answers {
        fs::write(dir.path().join(call), format!("{answer}\n"))?;
    }
    let aws = dir.path().join("aws");
    fs::write(&aws, AWS)?;
    fs::set_permissions(&aws, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(project()?.join("infra/preflight"));
    command.current_dir(project()?).env("ANSWERS", dir.path()).env("AWS_CLI", aws).env("AWS_REGION", "eu-west-1");
    let values = ["Subnets=subnet-1,subnet-2", "SecurityGroups=sg-1", "AssignPublicIp=DISABLED", "TaskCpu=1024", "Spot=previews"];
    // Of two values of a parameter the last one is used.
    let (overrides, options): (Vec<&str>, Vec<&str>) =
        arguments.iter().partition(|argument| argument.contains('=') && !argument.contains("://"));
    command.args(options).args(values).args(["WebhookConcurrency=5", "PublicWebhook=ENABLED", "ReconcilerConcurrency=10"]);
    command.args(["FetcherConcurrency=10", "LauncherConcurrency=5", "RecorderConcurrency=5", "ProgressConcurrency=2"]);
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
        "Fargate: 6 vCPUs run 6 tasks ",
        "Fargate Spot: 6 vCPUs run 6 tasks ",
        "ECS: the service-linked role exists",
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
        // A value from the user stays, even if it does not fit.
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
            "belong to several VPCs; no task could start: subnet-1 in vpc-1, subnet-2 in vpc-1, sg-1 in vpc-2",
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
    // Neither a value from the user nor an existing stack is changed.
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
        (denied, "warning: cannot read the quota of Fargate Spot: \"An error occurred (AccessDenied"),
        (json!({ "Quota": {} }), "warning: cannot read the quota of Fargate Spot: "),
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
    assert!(goes_on && said.contains("warning: cannot read the quota of Fargate: "), "{said}");
    Ok(())
}

#[test]
fn security_groups_have_to_let_https_out() -> Result<()> {
    let udp = json!({ "IpProtocol": "udp", "FromPort": 0, "ToPort": 65535, "IpRanges": [{ "CidrIp": "0.0.0.0/0" }] });
    let ipv6 = json!({ "IpProtocol": "-1", "IpRanges": [], "Ipv6Ranges": [{ "CidrIpv6": "::/0" }] });
    let list = json!({ "IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [], "PrefixListIds": [{ "PrefixListId": "pl-1" }] });
    let other = json!({ "IpProtocol": "-1", "IpRanges": [], "UserIdGroupPairs": [{ "GroupId": "sg-9" }] });
    let said_of = |egress: Value| -> Result<(bool, String)> {
        let mut answers = account();
        answers.insert("ec2.describe-security-groups", egress);
        let (goes_on, _, said) = preflight(&answers, &["--new"])?;
        Ok((goes_on, said))
    };
    for rules in [vec![], vec![tcp(80, 80, "0.0.0.0/0"), tcp(444, 65535, "0.0.0.0/0")], vec![udp, ipv6]] {
        let (goes_on, said) = said_of(groups(&[("sg-1", &rules)]))?;
        assert!(
            !goes_on
                && said.contains("tasks: security groups sg-1 allow no egress on TCP port 443; no task could pull its image"),
            "{said}"
        );
        let remedy = "aws ec2 authorize-security-group-egress --group-id sg-1 --protocol tcp --port 443 --cidr 0.0.0.0/0";
        assert!(said.contains(remedy), "{said}");
    }
    // Without endpoints no address in the VPC answers.
    for rules in [vec![tcp(443, 443, "10.0.0.0/16")], vec![other.clone()]] {
        let (goes_on, said) = said_of(groups(&[("sg-1", &rules)]))?;
        assert!(!goes_on && said.contains("tasks: security groups sg-1 allow TCP port 443 only to private addresses"), "{said}");
    }
    // A task has the rules of all its groups.
    for rule in [everything(), tcp(443, 443, "0.0.0.0/0"), tcp(0, 65535, "0.0.0.0/0"), list] {
        let (goes_on, said) = said_of(groups(&[("sg-1", &[]), ("sg-2", &[rule])]))?;
        assert!(goes_on, "{said}");
    }
    // A transit gateway may lead to endpoints of another VPC.
    let mut answers = account();
    answers.insert("ec2.describe-security-groups", groups(&[("sg-1", &[tcp(443, 443, "10.0.0.0/8")])]));
    let route = json!({ "DestinationCidrBlock": "0.0.0.0/0", "TransitGatewayId": "tgw-1", "State": "active" });
    answers.insert("ec2.describe-route-tables", tables(&route));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(goes_on, "{said}");

    // The addresses of an interface endpoint belong to the VPC; those of S3 behind a gateway
    // endpoint do not.
    let mut endpoints: Vec<_> = SERVICES.map(interface).into();
    for rule in [tcp(443, 443, "10.0.0.0/16"), other] {
        let mut answers = without_internet(&endpoints);
        answers.insert("ec2.describe-security-groups", groups(&[("sg-1", &[rule])]));
        let (goes_on, _, said) = preflight(&answers, &["--new"])?;
        assert!(goes_on, "{said}");
    }
    endpoints[3]["VpcEndpointType"] = json!("Gateway");
    endpoints[3]["RouteTableIds"] = json!(["rtb-1"]);
    let mut answers = without_internet(&endpoints);
    answers.insert("ec2.describe-security-groups", groups(&[("sg-1", &[tcp(443, 443, "10.0.0.0/16")])]));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(!goes_on && said.contains("a gateway endpoint has public addresses"), "{said}");
    Ok(())
}

#[test]
fn endpoints_have_to_let_the_tasks_in() -> Result<()> {
    let rule = |name: &str, source: Value| json!({ "IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, name: [source] });
    let block = |cidr: &str| rule("IpRanges", json!({ "CidrIp": cidr }));
    let of_group = |id: &str| rule("UserIdGroupPairs", json!({ "GroupId": id }));
    let http = json!({ "IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "IpRanges": [{ "CidrIp": "0.0.0.0/0" }] });
    for (ingress, lets_in) in [
        (json!([]), false),
        (json!([http]), false),
        (json!([of_group("sg-9")]), false),
        // One of the two subnets.
        (json!([block("10.0.1.0/24")]), false),
        (json!([block("10.0.1.0/24"), block("10.0.2.0/24")]), true),
        (json!([block("10.0.0.0/16")]), true),
        (json!([of_group("sg-1")]), true),
        (json!([{ "IpProtocol": "-1", "IpRanges": [{ "CidrIp": "0.0.0.0/0" }] }]), true),
    ] {
        let mut endpoints = SERVICES.map(interface);
        endpoints[0]["Groups"] = json!([{ "GroupId": "sg-endpoint" }]);
        // The name of the service resolves to the endpoint even if a NAT gateway is the way out.
        let mut behind_nat = account();
        behind_nat.insert("ec2.describe-vpc-endpoints", json!({ "VpcEndpoints": endpoints }));
        for mut answers in [without_internet(&endpoints), behind_nat] {
            let mut all = groups(&[("sg-1", &[everything()]), ("sg-endpoint", &[])]);
            all["SecurityGroups"][1]["IpPermissions"] = ingress.clone();
            answers.insert("ec2.describe-security-groups", all);
            let (goes_on, _, said) = preflight(&answers, &["--new"])?;
            assert_eq!(goes_on, lets_in, "{ingress}: {said}");
            assert_eq!(said.contains("the security groups of vpce-ecr.api (ecr.api) do not admit sg-1"), !lets_in, "{said}");
            let remedy = "--port 443 --group-id sg-endpoint --source-group sg-1";
            assert_eq!(said.contains(remedy), !lets_in, "{said}");
        }
    }
    Ok(())
}

#[test]
fn only_usable_endpoints_count() -> Result<()> {
    for (field, value, words) in [
        ("State", json!("pending"), "vpce-s3 (s3) is pending"),
        ("State", json!("Deleting"), "vpce-s3 (s3) is deleting"),
        ("State", json!("rejected"), "vpce-s3 (s3) is rejected"),
        ("PrivateDnsEnabled", json!(false), "vpce-s3 (s3) has no private DNS"),
    ] {
        let mut endpoints = SERVICES.map(interface);
        endpoints[3][field] = value.clone();
        let (goes_on, _, said) = preflight(&without_internet(&endpoints), &["--new"])?;
        assert!(!goes_on && said.contains("no VPC endpoints for s3") && said.contains(words), "{words:?} is not in: {said}");
        if field == "State" {
            endpoints[3] = json!({ "VpcEndpointId": "vpce-s3", "ServiceName": "com.amazonaws.eu-west-1.s3", "State": value,
                "VpcEndpointType": "Gateway", "RouteTableIds": ["rtb-1"] });
            let (goes_on, _, said) = preflight(&without_internet(&endpoints), &["--new"])?;
            assert!(!goes_on && said.contains(words), "{words:?} is not in: {said}");
        }
    }
    Ok(())
}

#[test]
fn endpoints_in_place_of_a_way_to_the_internet_are_enough() -> Result<()> {
    let with_s3_for = |table: &str| {
        let mut endpoints = SERVICES.map(interface);
        // A gateway endpoint has no private DNS of its own.
        endpoints[3]["VpcEndpointType"] = json!("Gateway");
        endpoints[3]["PrivateDnsEnabled"] = json!(false);
        endpoints[3]["RouteTableIds"] = json!([table]);
        without_internet(&endpoints)
    };
    let (goes_on, _, said) = preflight(&with_s3_for("rtb-2"), &["--new"])?;
    assert!(!goes_on && said.contains("no VPC endpoints for s3\n"), "{said}");
    let mut answers = with_s3_for("rtb-1");
    answers.insert("iam.get-role", json!("An error occurred (NoSuchEntity) when calling GetRole"));
    let (goes_on, _, said) = preflight(&answers, &["--new"])?;
    assert!(goes_on && said.contains("create-service-linked-role"), "{said}");
    // The services without an endpoint, once.
    let warning = "warning: tasks: subnet-1, subnet-2 reach AWS only through VPC endpoints; Pulumi Cloud (api.pulumi.com)";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    assert!(said.contains("use an S3 backend"), "{said}");
    Ok(())
}

#[test]
fn functions_have_to_reach_the_api_servers() -> Result<()> {
    let served = ["--new", "--eks", "prod", "production", "us-east-1"];
    let in_vpc = [&served[..], &["FunctionSubnets=subnet-1", "FunctionSecurityGroups=sg-1"]].concat();
    let (goes_on, _, said) = preflight(&account(), &served)?;
    assert!(goes_on && said.contains("deploy: cluster prod: its API server is public\n"), "{said}");
    for (changes, why) in [
        (json!({ "endpointPublicAccess": false }), "is not public"),
        (json!({ "publicAccessCidrs": ["203.0.113.0/24", "198.51.100.7/32"] }), "admits 203.0.113.0/24, 198.51.100.7/32 only"),
        (json!({ "publicAccessCidrs": ["203.0.113.0/24"], "endpointPrivateAccess": false }), "admits 203.0.113.0/24 only"),
    ] {
        let mut answers = account();
        answers.insert("eks.describe-cluster", eks(&changes));
        let (goes_on, _, said) = preflight(&answers, &served)?;
        let fact = format!(
            "cluster prod: the API server of the EKS cluster production {why}; functions outside a VPC do not reach it\n"
        );
        assert!(!goes_on && said.contains(&fact), "{fact:?} is not in: {said}");
        for remedy in
            ["PARAMETERS='FunctionSubnets=", "with a way to vpc-7 and to AWS", "sg-7 is the security group of the cluster"]
        {
            assert!(said.contains(remedy), "{remedy:?} is not in: {said}");
        }
        let without = changes["endpointPrivateAccess"] == false;
        assert_eq!(
            said.contains("update-cluster-config --region us-east-1 --name production --resources-vpc-config "),
            without,
            "{said}"
        );
        let (goes_on, _, said) = preflight(&answers, &in_vpc)?;
        assert!(goes_on, "{said}");
    }
    let mut answers = account();
    let mut by_config_map = eks(&json!({}));
    by_config_map["cluster"]["accessConfig"]["authenticationMode"] = "CONFIG_MAP".into();
    answers.insert("eks.describe-cluster", by_config_map);
    for arguments in [&served[..], &in_vpc] {
        let (goes_on, _, said) = preflight(&answers, arguments)?;
        assert!(!goes_on && said.contains("--access-config authenticationMode=API_AND_CONFIG_MAP"), "{said}");
    }
    for (error, words, is_refused) in [
        (
            "An error occurred (ResourceNotFoundException)",
            "cluster prod: this account has no EKS cluster production in us-east-1",
            true,
        ),
        ("An error occurred (AccessDeniedException)", "warning: cluster prod: cannot read whether the API server of ", false),
    ] {
        let mut answers = account();
        answers.insert("eks.describe-cluster", json!(error));
        let (goes_on, _, said) = preflight(&answers, &served)?;
        assert!(goes_on != is_refused && said.contains(words), "{words:?} is not in: {said}");
    }
    Ok(())
}

/// Subnets that the named services are reached from by endpoints alone.
fn by_endpoints() -> Answers {
    without_internet(&SERVICES.map(interface))
}

#[test]
fn backend_outside_aws_needs_a_way_to_the_internet() -> Result<()> {
    let mut by_prefix_list = account();
    let list = json!({ "IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [], "PrefixListIds": [{ "PrefixListId": "pl-1" }] });
    by_prefix_list.insert("ec2.describe-security-groups", groups(&[("sg-1", &[list])]));
    for backend in [
        "https://api.pulumi.com",
        "https://user:hunter2@pulumi.example",
        "gs://state",
        "s3://state?endpoint=minio.example",
        "s3://state?region=us-east-1",
    ] {
        let (goes_on, _, said) = preflight(&account(), &["--new", "--backend", backend])?;
        assert!(
            goes_on && said.contains("tasks: the network fits an S3 backend in this Region, Pulumi Cloud, and any other"),
            "{said}"
        );
        for (answers, why) in [
            (by_endpoints(), "subnet-1, subnet-2 have no default route"),
            (by_prefix_list.clone(), "security groups sg-1 allow egress on TCP port 443"),
        ] {
            let (goes_on, _, said) = preflight(&answers, &["--new", "--backend", "s3://mine", "--backend", backend])?;
            let scheme = backend.split("://").next().context("a scheme")?;
            assert!(!goes_on && said.contains(&format!("tasks: the backend {scheme}://")), "{backend}: {said}");
            assert!(
                said.contains(&format!("is out of reach: {why}")) && said.contains("AssignPublicIp=ENABLED"),
                "{backend}: {said}"
            );
            assert!(!said.contains("hunter2") && !said.contains("s3://mine"), "{said}");
        }
    }
    // Public subnets, with the addresses that a new stack gets.
    let mut answers = account();
    answers.insert("ec2.describe-route-tables", internet());
    let (goes_on, chosen, said) = preflight(&answers, &["--new", "--backend", "https://api.pulumi.com"])?;
    assert!(goes_on && chosen == "AssignPublicIp=ENABLED\n" && said.contains("Pulumi Cloud, and any other backend"), "{said}");
    // The other side of a transit gateway is not known.
    let route = json!({ "DestinationCidrBlock": "0.0.0.0/0", "TransitGatewayId": "tgw-1", "State": "active" });
    answers.insert("ec2.describe-route-tables", tables(&route));
    let (goes_on, _, said) = preflight(&answers, &["--new", "--backend", "https://api.pulumi.com"])?;
    assert!(
        goes_on && said.contains("warning: tasks: whether they reach the backend https://api.pulumi.com is not known"),
        "{said}"
    );
    Ok(())
}

#[test]
fn backend_in_s3_needs_the_way_to_s3_alone() -> Result<()> {
    for backend in ["s3://state", "s3://state?region=eu-west-1"] {
        let (goes_on, _, said) = preflight(&by_endpoints(), &["--new", "--backend", backend])?;
        assert!(goes_on && said.contains("tasks: the network fits an S3 backend in this Region\n"), "{said}");
    }
    for backend in ["file:///state", "api.pulumi.com", "s3://"] {
        let (goes_on, _, said) = preflight(&account(), &["--new", "--backend", backend])?;
        assert!(!goes_on && said.contains("is no backend that tasks share") && said.contains("give the URL of one"), "{said}");
    }
    Ok(())
}

#[test]
fn without_a_backend_it_says_which_ones_the_network_fits() -> Result<()> {
    let hint = "; BACKEND=URL checks the one that your Stacks name\n";
    for (answers, fits) in [
        (account(), "an S3 backend in this Region, Pulumi Cloud, and any other backend in the internet"),
        (by_endpoints(), "an S3 backend in this Region"),
    ] {
        let (goes_on, _, said) = preflight(&answers, &["--new"])?;
        assert!(goes_on && said.contains(&format!("deploy: tasks: the network fits {fits}{hint}")), "{said}");
    }
    Ok(())
}
