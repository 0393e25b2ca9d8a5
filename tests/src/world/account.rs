//! A world without an installation: an AWS account, and a cluster with Flux's CRDs. `make deploy`
//! and `make prove` work on it.

use std::{net::Ipv4Addr, path::Path, sync::Arc};

use anyhow::Result;
use tokio::net::TcpListener;

use super::{
    aws_cli::AwsCli,
    cluster::{self, Cluster, start_etcd},
    dirs::{Dirs, write_private},
    kubelet::Kubelet,
    moto::Moto,
    process::{Supervisor, command, output},
    start::{INSTANCES, binary, image},
};
use crate::aws::{
    Eks,
    account::{Account, Ground},
    control::Outage,
    site::Tasks,
};

/// Version 1 of the AWS CLI uses another host name for SQS in older Regions, whatever endpoint is
/// set.
pub const REGION: &str = "eu-central-2";

/// A running world without an installation.
pub struct Empty {
    /// The variables of a person who uses it.
    pub variables: Vec<(&'static str, String)>,
    /// The AWS CLI.
    pub aws_cli: AwsCli,
    supervisor: Supervisor,
    tasks: Tasks,
    _dirs: Arc<Dirs>,
}

impl Empty {
    /// Starts every part in `target/<name>`. An installation meets the outages from its start.
    pub async fn start(project: &Path, name: &str, outages: Vec<Outage>) -> Result<Self> {
        let dirs = Arc::new(Dirs::named(project, name)?);
        let (supervisor, tasks) = (Supervisor::default(), Tasks::default());
        let parts = parts(&dirs, &supervisor, &tasks, project, outages);
        let (variables, aws_cli) = Box::pin(supervisor.guard(parts)).await?;
        Ok(Self { variables, aws_cli, supervisor, tasks, _dirs: dirs })
    }

    /// Runs a command to its end, unless a part ends earlier.
    pub async fn run(&self, mut command: tokio::process::Command) -> Result<std::process::Output> {
        command.envs(self.variables.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        self.supervisor.guard(async { Ok(command.output().await?) }).await
    }

    /// Ends every part.
    pub async fn stop(self) {
        self.tasks.stop().await;
        self.supervisor.stop().await;
    }
}

async fn parts(
    dirs: &Arc<Dirs>,
    supervisor: &Supervisor,
    tasks: &Tasks,
    project: &Path,
    outages: Vec<Outage>,
) -> Result<(Vec<(&'static str, String)>, AwsCli)> {
    let authenticator = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let authenticator_url = format!("http://{}/", authenticator.local_addr()?);
    let cluster = async {
        let etcd = start_etcd(dirs, supervisor).await?;
        Cluster::start_with_flux(dirs, supervisor, &etcd, Some(&authenticator_url)).await
    };
    let (cluster, moto, aws_cli, image) =
        tokio::try_join!(Box::pin(cluster), Moto::start(dirs, supervisor), AwsCli::start(dirs, supervisor), image(dirs))?;
    let region = REGION.to_owned();
    let [subnets, groups] = network(dirs, &aws_cli, &moto.endpoint).await?;
    // EKS describes the cluster, as `make deploy` reads it.
    let role = "arn:aws:iam::123456789012:role/eks";
    let create =
        format!("eks create-cluster --name {} --role-arn {role} --resources-vpc-config subnetIds={subnets}", cluster::NAME);
    call(dirs, &aws_cli, &moto.endpoint, &create).await?;
    let ground = Ground { region, moto: moto.endpoint, runner: binary(project, "runner")?, image, instances: INSTANCES, outages };
    let eks = Eks { cluster: cluster::NAME.into(), listener: authenticator };
    let account = Account::start(Arc::clone(dirs), tasks, eks, ground).await?;
    let kubelet = Kubelet {
        dirs: Arc::clone(dirs),
        client: cluster.client("admin").await?,
        kubeconfig: cluster.kubeconfig("forwarder"),
        program: binary(project, "forwarder")?,
        account: Arc::clone(&account),
    };
    tasks.spawn(kubelet.run());
    // The output of `aws eks update-kubeconfig`.
    let functions = dirs.root().join("kubeconfig/functions");
    write_private(&functions, &cluster::kubeconfig(&[cluster.entry(cluster.eks_user(REGION))])?)?;
    let variables = vec![
        ("KUBECONFIG", cluster.admin_kubeconfig.display().to_string()),
        ("KUBECONFIG_FILE", functions.display().to_string()),
        ("SUBNETS", subnets),
        ("SECURITY_GROUPS", groups),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_ENDPOINT_URL", account.endpoint.clone()),
        ("AWS_ACCESS_KEY_ID", account.administrator.access_key_id.clone()),
        ("AWS_SECRET_ACCESS_KEY", account.administrator.secret_access_key.clone()),
    ];
    Ok((variables, aws_cli))
}

/// Two public subnets of moto's default VPC, and a security group without inbound rules.
pub async fn network(dirs: &Dirs, aws_cli: &AwsCli, endpoint: &str) -> Result<[String; 2]> {
    let ask = async |words: &str| call(dirs, aws_cli, endpoint, &format!("ec2 {words}")).await;
    let subnets = ask("describe-subnets --query Subnets[:2].SubnetId").await?.replace('\t', ",");
    let vpc = ask("describe-vpcs --query Vpcs[0].VpcId").await?;
    let group = format!("create-security-group --group-name tasks --description tasks --vpc-id {vpc} --query GroupId");
    let group = ask(&group).await?;
    let gateway = ask("create-internet-gateway --query InternetGateway.InternetGatewayId").await?;
    ask(&format!("attach-internet-gateway --internet-gateway-id {gateway} --vpc-id {vpc}")).await?;
    let table = ask("describe-route-tables --query RouteTables[0].RouteTableId").await?;
    ask(&format!("create-route --route-table-id {table} --destination-cidr-block 0.0.0.0/0 --gateway-id {gateway}")).await?;
    Ok([subnets, group])
}

/// A call of moto, and its answer as text.
async fn call(dirs: &Dirs, aws_cli: &AwsCli, endpoint: &str, words: &str) -> Result<String> {
    let mut aws = command(dirs, &aws_cli.program);
    aws.args(words.split(' ')).args(["--output", "text", "--region", REGION, "--endpoint-url", endpoint]);
    aws.env("AWS_ACCESS_KEY_ID", "k").env("AWS_SECRET_ACCESS_KEY", "s");
    Ok(output(aws).await?.trim().to_owned())
}
