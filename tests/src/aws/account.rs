//! An AWS account without Driftless. moto answers every call until its `CloudFormation` has created
//! the stack of `infra/template.yaml`, as requested by `make deploy`. From then on an [`Aws`] with
//! the deployed template and the uploaded functions answers, until the stack is deleted.
//!
//! This module corrects differences of moto's `CloudFormation` from AWS's: a function URL has an
//! attribute, parameters have their defaults, a stack that was created by a change set has outputs,
//! and the condition of a bucket policy is not taken for true.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::{Arc, Mutex as Lock, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{DefaultBodyLimit, State},
    http::{Request, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::{
    Aws, Credentials, Eks, Settings, backend, gate,
    machine::{address, listener},
    outages::Outage,
    provision,
    site::Tasks,
};
use crate::world::{
    dirs::Dirs,
    process::{command, output},
};

/// The maximum size of a `CloudFormation` call.
const FORM_BYTES: usize = 2 << 20;
const FUNCTION: &str = "AWS::Lambda::Function";
const ACCESS_ENTRY: &str = "AWS::EKS::AccessEntry";
const ASSOCIATION: &str = "AWS::EKS::PodIdentityAssociation";
/// The webhook's URL in moto's outputs. No test calls it.
const FUNCTION_URL: &str = "https://function-url.invalid/";

/// The account and its machine before a deployment.
pub struct Ground {
    /// The Region.
    pub region: String,
    /// moto's URL, without a trailing slash.
    pub moto: String,
    /// See [`Settings::runner`].
    pub runner: PathBuf,
    /// See [`Settings::image`].
    pub image: BTreeMap<String, String>,
    /// See [`Settings::instances`].
    pub instances: usize,
    /// The outages of an installation from its start.
    pub outages: Vec<Outage>,
}

/// The account.
pub struct Account {
    /// `AWS_ENDPOINT_URL`: every service, for all callers.
    pub endpoint: String,
    /// Keys with all permissions.
    pub administrator: Credentials,
    dirs: Arc<Dirs>,
    ground: Ground,
    client: reqwest::Client,
    objects: aws_sdk_s3::Client,
    changes: Lock<BTreeMap<String, Change>>,
    installed: Mutex<Installed>,
}

struct Installed {
    /// With the name of its stack.
    aws: Option<(String, Aws)>,
    /// The cluster, until its stack exists.
    eks: Option<Eks>,
    /// From the cluster's stack.
    association: Option<Association>,
}

/// An association of EKS Pod Identity.
struct Association {
    cluster: String,
    namespace: String,
    service_account: String,
    /// The role's ARN.
    role: String,
}

impl Association {
    /// The one of a template with these parameters.
    fn of(template: &Value, parameters: &BTreeMap<String, String>) -> Result<Self> {
        let mut resources = template["Resources"].as_object().into_iter().flatten();
        let (_, found) =
            resources.find(|(_, resource)| resource["Type"] == ASSOCIATION).context("no Pod Identity association")?;
        let text = |name: &str| {
            let parameter = found["Properties"][name]["Ref"].as_str().with_context(|| format!("{name} is no parameter"))?;
            let default = || template["Parameters"][parameter]["Default"].as_str().map(ToOwned::to_owned);
            parameters.get(parameter).cloned().or_else(default).with_context(|| format!("{parameter} is not set"))
        };
        let [cluster, namespace] = [text("ClusterName")?, text("Namespace")?];
        Ok(Self { cluster, namespace, service_account: text("ServiceAccount")?, role: text("RoleArn")? })
    }
}

/// The last change set of a stack.
enum Change {
    Installation {
        template: Value,
        parameters: BTreeMap<String, String>,
        /// The call that created the change set.
        form: Form,
    },
    /// The stack of the cluster's access to the installation.
    Cluster(Association),
    Other,
}

/// The fields of a call of `CloudFormation`, in their order.
type Form = Vec<(String, String)>;

impl Account {
    /// Serves as one of `tasks`. The cluster admits the functions once its own stack exists.
    pub async fn start(dirs: Arc<Dirs>, tasks: &Tasks, eks: Eks, ground: Ground) -> Result<Arc<Self>> {
        let listener = listener().await?;
        let administrator = Credentials::random()?;
        let objects = provision::s3(&backend(&ground.moto, &ground.region, &administrator).await);
        let account = Arc::new(Self {
            endpoint: address(&listener)?,
            administrator,
            dirs,
            ground,
            client: gate::http_client()?,
            objects,
            changes: Lock::default(),
            installed: Installed { aws: None, eks: Some(eks), association: None }.into(),
        });
        let router = Router::new().fallback(handle).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&account));
        tasks.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the account ended");
            }
        });
        Ok(account)
    }

    /// Keys for the pods of a `ServiceAccount`, which EKS Pod Identity issues once the cluster's
    /// stack exists.
    pub async fn forwarder(&self, namespace: &str, service_account: &str) -> Result<Credentials> {
        let installed = self.installed.lock().await;
        let association = installed
            .association
            .as_ref()
            .filter(|association| association.namespace == namespace && association.service_account == service_account);
        let Association { cluster, role, .. } = association.context("the ServiceAccount has no Pod Identity association")?;
        let (_, aws) = installed.aws.as_ref().context("nothing is installed")?;
        let (role, _) = aws.site.template.role(role)?;
        aws.pod_identity(role, cluster, namespace, service_account)
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response> {
        let (parts, body) = request.into_parts();
        let service = gate::credential(&parts.headers).map(|(_, service)| service).unwrap_or_default();
        if service == "cloudformation" {
            let form = url::form_urlencoded::parse(&to_bytes(body, FORM_BYTES).await?).into_owned().collect();
            return self.cloud_formation(parts, form).await;
        }
        // moto ignores conditions, so a policy that denies unencrypted requests would refuse all of
        // them.
        if service == "s3" && parts.method == "PUT" && parts.uri.query() == Some("policy") {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let to = self.installed.lock().await.aws.as_ref().map(|(_, aws)| aws.endpoint.clone());
        let body = reqwest::Body::wrap_stream(body.into_data_stream());
        self.forward(to.as_deref().unwrap_or(&self.ground.moto), &parts, body).await
    }

    async fn cloud_formation(&self, parts: Parts, mut form: Form) -> Result<Response> {
        let stack = field(&form, "StackName").unwrap_or_default().to_owned();
        match field(&form, "Action").unwrap_or_default() {
            "CreateChangeSet" => {
                let change = self.change(&mut form).await?;
                self.changes().insert(stack, change);
            }
            "DeleteStack" => self.uninstall(&stack).await?,
            "ExecuteChangeSet" => {
                let answer = self.call(&parts, &form).await?;
                if answer.status().is_success() {
                    self.install(&stack, &parts).await?;
                }
                return Ok(answer);
            }
            _ => {}
        }
        self.call(&parts, &form).await
    }

    /// Records what is to be installed, and translates it for moto.
    async fn change(&self, form: &mut Form) -> Result<Change> {
        let text = match field(form, "TemplateURL") {
            None => field(form, "TemplateBody").context("a template")?.to_owned(),
            Some(url) => {
                let path = url::Url::parse(url)?.path().trim_start_matches('/').to_owned();
                let (bucket, key) = path.split_once('/').context("bucket and key of the template")?;
                String::from_utf8(self.object(bucket, key).await?.into())?
            }
        };
        let original: Value = serde_saphyr::from_str(&text)?;
        let has =
            |kind: &str| original["Resources"].as_object().into_iter().flatten().any(|(_, resource)| resource["Type"] == kind);
        let given = (1..).map_while(|number| {
            let of = |part: &str| field(form, &format!("Parameters.member.{number}.Parameter{part}"));
            Some((of("Key")?.to_owned(), of("Value").unwrap_or_default().to_owned()))
        });
        let parameters: BTreeMap<_, _> = given.collect();
        if !has(FUNCTION) {
            let is_cluster = has(ACCESS_ENTRY);
            return if is_cluster { Association::of(&original, &parameters).map(Change::Cluster) } else { Ok(Change::Other) };
        }
        let mut template = original.clone();
        let declared = template["Parameters"].as_object().cloned().unwrap_or_default();
        let defaults = declared.into_iter().filter(|(name, _)| !parameters.contains_key(name));
        for (number, (name, declaration)) in (parameters.len() + 1..).zip(defaults) {
            let default = &declaration["Default"];
            let value = default.as_str().map_or_else(|| default.to_string(), ToOwned::to_owned);
            form.push((format!("Parameters.member.{number}.ParameterKey"), name));
            form.push((format!("Parameters.member.{number}.ParameterValue"), value));
        }
        let url = json!({ "Fn::GetAtt": ["WebhookUrl", "FunctionUrl"] });
        for output in template["Outputs"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            if output["Value"] == url {
                output["Value"] = FUNCTION_URL.into();
            }
        }
        form.retain(|(name, _)| !name.starts_with("Template"));
        form.push(("TemplateBody".into(), template.to_string()));
        Ok(Change::Installation { template: original, parameters, form: form.clone() })
    }

    fn changes(&self) -> MutexGuard<'_, BTreeMap<String, Change>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what `CloudFormation` has created. moto shows the outputs of a stack only after an
    /// update.
    async fn install(&self, stack: &str, parts: &Parts) -> Result<()> {
        let change = self.changes().remove(stack);
        let mut installed = self.installed.lock().await;
        let (mut template, parameters, form) = match change {
            Some(Change::Installation { template, parameters, form }) => (template, parameters, form),
            Some(Change::Cluster(associated)) => {
                let Installed { aws, eks, association } = &mut *installed;
                let (_, aws) = aws.as_ref().context("the installation's stack comes first")?;
                if let Some(eks) = eks.take() {
                    aws.admit(eks);
                }
                *association = Some(associated);
                return Ok(());
            }
            Some(Change::Other) | None => return Ok(()),
        };
        ensure!(installed.aws.is_none(), "an upgrade is not known here");
        let functions = template["Resources"].as_object_mut().into_iter().flatten();
        for (id, function) in functions.filter(|(_, resource)| resource["Type"] == FUNCTION) {
            let code = &mut function["Properties"]["Code"];
            *code = self.unpack(id, code).await?.into();
        }
        let file = self.dirs.root().join("template.json");
        fs::write(&file, template.to_string())?;
        let Ground { region, moto, runner, image, instances, outages, .. } = &self.ground;
        let settings = Settings {
            region: region.clone(),
            stack: stack.to_owned(),
            template: file,
            parameters,
            administrator: self.administrator.clone(),
            is_deployed: true,
            secrets: BTreeMap::new(),
            objects: BTreeMap::new(),
            etc_hosts: None,
            runner: runner.clone(),
            image: image.clone(),
            moto: moto.clone(),
            instances: *instances,
        };
        let aws = Aws::start(Arc::clone(&self.dirs), settings).await?;
        for outage in outages {
            aws.site.outages.set(outage.clone());
        }
        let outputs: Map<_, _> =
            aws.site.template.outputs.iter().map(|(name, value)| (name.clone(), json!({ "Value": value }))).collect();
        template["Outputs"] = outputs.into();
        let update = form.into_iter().filter_map(|(name, value)| match name.as_str() {
            "Action" => Some((name, "UpdateStack".into())),
            "TemplateBody" => Some((name, template.to_string())),
            name if name.starts_with("ChangeSet") => None,
            _ => Some((name, value)),
        });
        let answer = self.call(parts, &update.collect()).await?;
        ensure!(answer.status().is_success(), "moto did not take the outputs: {}", answer.status());
        installed.aws = Some((stack.to_owned(), aws));
        Ok(())
    }

    async fn uninstall(&self, stack: &str) -> Result<()> {
        let mut installed = self.installed.lock().await;
        if installed.aws.as_ref().is_some_and(|(name, _)| name == stack)
            && let Some((_, aws)) = installed.aws.take()
        {
            aws.stop().await;
        }
        Ok(())
    }

    /// The folder with a function's package, as uploaded.
    async fn unpack(&self, id: &str, code: &Value) -> Result<String> {
        let (bucket, key) = code["S3Bucket"].as_str().zip(code["S3Key"].as_str()).context("an uploaded package")?;
        let folder = self.dirs.create(&format!("functions/{}", id.to_lowercase()))?;
        let archive = folder.with_extension("zip");
        fs::write(&archive, self.object(bucket, key).await?)?;
        let mut unzip = command(&self.dirs, "python3");
        unzip.args(["-m", "zipfile", "-e"]).args([&archive, &folder]);
        output(unzip).await?;
        // The deployment's own tests check the mode in the archive, which Python does not apply.
        fs::set_permissions(folder.join("bootstrap"), fs::Permissions::from_mode(0o755))?;
        Ok(folder.display().to_string())
    }

    async fn object(&self, bucket: &str, key: &str) -> Result<Bytes> {
        let object = self.objects.get_object().bucket(bucket).key(key).send().await.with_context(|| format!("{bucket}/{key}"))?;
        Ok(object.body.collect().await?.into_bytes())
    }

    async fn call(&self, parts: &Parts, form: &Form) -> Result<Response> {
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let mut parts = parts.clone();
        parts.headers.insert(header::CONTENT_LENGTH, body.len().into());
        self.forward(&self.ground.moto, &parts, body.into()).await
    }

    /// The host stays the one that the caller signed.
    async fn forward(&self, to: &str, parts: &Parts, body: reqwest::Body) -> Result<Response> {
        let host = parts.headers.get(header::HOST).cloned();
        let request = gate::forwarded(&self.client, to, parts, body);
        let request = if let Some(host) = host { request.header(header::HOST, host) } else { request };
        Ok(gate::answered(request.send().await?))
    }
}

async fn handle(State(account): State<Arc<Account>>, request: Request<Body>) -> Response {
    account.answer(request).await.unwrap_or_else(|error| {
        tracing::error!(error = format!("{error:#}"), "the account fails");
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")).into_response()
    })
}

fn field<'a>(form: &'a Form, name: &str) -> Option<&'a str> {
    form.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}
