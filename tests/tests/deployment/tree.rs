//! A copy of the project in which the scripts run, and the installation that they create.

use super::*;

/// The scripts and their files, in a writable folder.
pub(super) struct Tree<'a> {
    pub(super) aws: Aws<'a>,
    pub(super) root: PathBuf,
    pub(super) webhook: String,
}

impl<'a> Tree<'a> {
    pub(super) async fn copy(aws: Aws<'a>, server: &str) -> Result<Self> {
        let (project, root) = (project()?, aws.dirs.create("tree")?);
        let mut copy = command(aws.dirs, "cp");
        copy.arg("-r").args(["infra", "Cargo.toml"].map(|name| project.join(name))).arg(&root);
        output(copy).await?;
        for name in FUNCTIONS {
            let bootstrap = root.join("target/lambda").join(name).join("bootstrap");
            fs::create_dir_all(bootstrap.parent().context("a folder")?)?;
            fs::write(&bootstrap, name)?;
            // As after a build with a umask that excludes other users.
            fs::set_permissions(&bootstrap, fs::Permissions::from_mode(0o700))?;
        }
        let tls = Certificates::create(aws.dirs, &aws.dirs.create("tls")?).await?;
        fs::write(root.join(CERTIFICATES), tls.authority.repeat(BUNDLE_BYTES.div_ceil(tls.authority.len())))?;
        fs::write(root.join(DAMAGED[0]), DAMAGED[1])?;
        // moto's stacks never fail. This script reports a failed one: the first call about the
        // stack returns ROLLED_BACK. moto denies nothing; this script denies the calls that have
        // the text of DENIED.
        let (aws_cli, told) = (root.join("bin/aws"), root.join("told"));
        fs::create_dir(root.join("bin"))?;
        let text = format!(
            "#!/bin/sh\ncase \"$*\" in *\"describe-stacks --stack-name $ROLLED_BACK --query Stacks[0].StackStatus\"*)\n\
             mkdir {} 2>/dev/null && echo ROLLBACK_COMPLETE && exit;;\n\
             *\"${{DENIED:-nothing is denied}}\"*) echo 'An error occurred (AccessDeniedException): denied' >&2; exit 254;; esac\n\
             exec {} \"$@\"\n",
            told.display(),
            aws.cli.program.display()
        );
        fs::write(&aws_cli, text)?;
        fs::set_permissions(&aws_cli, fs::Permissions::from_mode(0o755))?;
        // moto creates no function URL, so its attribute is missing.
        let template = root.join("infra/template.yaml");
        let text = fs::read_to_string(&template)?;
        let (url, ours) = ("Fn::GetAtt: [WebhookUrl, FunctionUrl]", format!("Fn::Sub: \"{server}\""));
        ensure!(text.matches(url).count() == 1, "the template has not {url:?}");
        fs::write(&template, text.replace(url, &ours))?;

        let user = |name: &str| json!({ "name": name, "user": { "token": format!("{name}-secret-token") } });
        let context = |name: &str| json!({ "name": name, "context": { "cluster": name, "user": name } });
        let cluster = |name: &str| json!({ "name": name, "cluster": { "server": server } });
        // In the form of `aws eks update-kubeconfig`.
        let eks = json!({ "name": "prod", "user": { "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws",
            "args": ["--region", EKS_REGION, "eks", "get-token", "--cluster-name", EKS_CLUSTER, "--output", "json"],
        } } });
        let names = ["prod", "lab", "other"];
        let mut kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "contexts": names.map(context), "clusters": names.map(cluster),
            "users": [eks, user("lab"), user("other")],
        });
        // In the form of docs/clusters.md, beside the administrator's.
        for (cluster, function) in ["lab", "other"].iter().flat_map(|cluster| CALLERS.map(|function| (cluster, function))) {
            let name = format!("{cluster}.{function}");
            let context = json!({ "name": name, "context": { "cluster": cluster, "user": name } });
            for (part, entry) in [("users", user(&name)), ("contexts", context)] {
                kubeconfig[part].as_array_mut().context("a list")?.push(entry);
            }
        }
        fs::write(root.join("clusters.yaml"), kubeconfig.to_string())?;
        let cluster = ["--name", EKS_CLUSTER, "--role-arn", "arn:aws:iam::123456789012:role/eks"];
        let network = ["--resources-vpc-config", "subnetIds=subnet-1,subnet-2"];
        let eks = Aws { region: EKS_REGION, ..aws.clone() };
        eks.run(&[&["eks", "create-cluster"], &cluster[..], &network].concat()).await?;
        let tree = Self { aws, root, webhook: server.to_owned() };
        // No registry of the internet answers a test.
        tree.stand_in("crane", "echo 'no such host' >&2; exit 1")?;
        Ok(tree)
    }

    /// Runs a script of `infra`, as `make` does. Returns its exit status and output, which must
    /// have no secret.
    pub(super) async fn script(&self, name: &str, variables: &[(&str, &str)]) -> Result<(i32, String)> {
        self.run(self.root.join("infra").join(name), variables).await
    }

    pub(super) async fn run(&self, program: PathBuf, variables: &[(&str, &str)]) -> Result<(i32, String)> {
        let words = format!("{} {variables:?}", program.display());
        let mut command = self.aws.command(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let (ours, tools) = (self.root.join("bin"), self.aws.dirs.tools());
        command.env("PATH", format!("{}:{}:{}", ours.display(), tools.display(), path.display())).env("AWS_REGION", REGION);
        command.envs(variables.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.context(words)?;
        let said = [output.stderr, output.stdout].concat();
        let said = String::from_utf8(said)?;
        assert!(SECRETS.iter().all(|secret| !said.contains(secret)), "a secret is shown: {said}");
        Ok((output.status.code().context("a signal")?, said))
    }

    pub(super) async fn git(&self, words: &[&str]) -> Result<String> {
        let mut git = command(self.aws.dirs, "git");
        git.arg("-C").arg(&self.root).args(["-c", "user.name=t", "-c", "user.email=t@example.com"]).args(words);
        output(git).await
    }

    /// Checks what AWS got: the functions, the certificates, and the clusters.
    pub(super) async fn given(&self, bucket: &str) -> Result<()> {
        self.uploaded(bucket).await?;
        self.configured().await
    }

    /// A program that replaces another one on `PATH`.
    pub(super) fn stand_in(&self, name: &str, text: &str) -> Result<()> {
        let path = self.root.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(Into::into)
    }

    /// A release as `infra/dist` makes it, with functions for one architecture.
    pub(super) async fn release(&self, folder: &Path) -> Result<()> {
        const ZIP: &str = "import sys, zipfile\n\
            for name in sys.argv[1:]: zipfile.ZipFile(f'{name}-x86_64.zip', 'w').writestr('bootstrap', name)";
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join("images.env"),
            "RUNNER_IMAGE=ghcr.io/driftless/runner@sha256:1\nFORWARDER_IMAGE=ghcr.io/driftless/forwarder@sha256:2\n",
        )?;
        let mut python = command(self.aws.dirs, "python3");
        python.current_dir(folder).args(["-c", ZIP]).args(FUNCTIONS);
        output(python).await?;
        let mut sums = command(self.aws.dirs, "sh");
        sums.current_dir(folder).args(["-c", "sha256sum -- * >../sums && mv ../sums SHA256SUMS"]);
        output(sums).await.map(drop)
    }

    /// Checks that other users may execute the uploaded functions' bootstraps.
    pub(super) async fn uploaded(&self, bucket: &str) -> Result<()> {
        const LIST: &str = "import sys, zipfile\n\
            for path in filter(zipfile.is_zipfile, sys.argv[1:]):\n  \
            for entry in zipfile.ZipFile(path).infolist(): print(entry.filename, oct(entry.external_attr >> 16))";
        let folder = self.aws.dirs.create("packages")?;
        let from = format!("s3://{bucket}/{STACK}");
        self.aws.run(&["s3", "cp", "--recursive", "--exclude", "git/*", &from, &folder.to_string_lossy()]).await?;
        let files: Vec<_> = fs::read_dir(&folder)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        let mut python = command(self.aws.dirs, "python3");
        python.args(["-c", LIST]).args(files);
        assert_eq!(output(python).await?, "bootstrap 0o100755\n".repeat(FUNCTIONS.len()));
        Ok(())
    }

    /// Checks that the certificates are in their object, and that each function has its own
    /// kubeconfig.
    pub(super) async fn configured(&self) -> Result<()> {
        let parameters = self.described("Parameters").await?;
        let given = list(&parameters).iter().find(|one| one["ParameterKey"] == "GitCaCertificates").context("a parameter")?;
        let object =
            given["ParameterValue"].as_str().and_then(|arn| arn.strip_prefix("arn:aws:s3:::")).context("an ARN of S3")?;
        let copy = self.root.join("stored.pem");
        self.aws.run(&["s3", "cp", &format!("s3://{object}"), &copy.to_string_lossy()]).await?;
        let [stored, written] = [copy, self.root.join(CERTIFICATES)].map(fs::read_to_string);
        let (stored, written) = (stored?, written?);
        assert!(stored.trim_end() == written.trim_end() && stored.len() >= BUNDLE_BYTES, "{} bytes are stored", stored.len());
        for function in CALLERS {
            let uploaded: Value = serde_saphyr::from_str(&secret(&self.aws, &format!("kubeconfig/{function}")).await?)?;
            let own = format!("lab.{function}");
            for (part, expected) in [("contexts", "lab"), ("clusters", "lab"), ("users", &own)] {
                let mut names: Vec<_> = list(&uploaded[part]).iter().filter_map(|one| one["name"].as_str()).collect();
                names.sort_unstable();
                assert_eq!(names, [expected, "prod"], "only what CLUSTERS names and is the {function}'s is uploaded: {part}");
            }
        }
        let whole = secret(&self.aws, "kubeconfig").await?;
        assert!(!whole.contains("lab-secret-token"), "the administrator's token is used by no function");
        Ok(())
    }

    /// Checks that the stack, its tasks and the secrets have the tags of `TAGS`, also after a
    /// deployment without it.
    pub(super) async fn tagged(&self) -> Result<()> {
        let pairs = |tags: &Value| -> BTreeMap<String, String> {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            list(tags).iter().map(|tag| (text(&tag["Key"]), text(&tag["Value"]))).collect()
        };
        let secret = format!("{STACK}/kubeconfig");
        let secret: Value =
            serde_json::from_str(&self.aws.run(&["secretsmanager", "describe-secret", "--secret-id", &secret]).await?)?;
        let expected = TAGGED.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for tags in [&self.described("Tags").await?, &secret["Tags"]] {
            assert_eq!(pairs(tags), expected);
        }
        let parameters = self.described("Parameters").await?;
        let given = list(&parameters).iter().find(|one| one["ParameterKey"] == "TaskTags").context("a parameter")?;
        // moto prints a list in Python's form.
        let given = given["ParameterValue"].as_str().unwrap_or_default();
        assert!(TAGGED.iter().all(|(key, value)| given.contains(&format!("{key}={value}"))), "{given}");
        Ok(())
    }

    /// Checks a deployment for an organisation that allows no function URL: there is no post and no
    /// key.
    pub(super) async fn without_webhook(&self, variables: &[(&str, &str)], parameters: &str) -> Result<()> {
        let parameters = format!("{parameters} PublicWebhook=DISABLED");
        // The image of an earlier deployment stays.
        let mut variables: Vec<_> = variables.iter().copied().filter(|(name, _)| *name != "FORWARDER_IMAGE").collect();
        variables.push(("PARAMETERS", &parameters));
        let (code, said) = self.script("deploy", &variables).await?;
        assert!(code == 0 && !said.contains("webhook"), "{said}");
        let folder = self.root.join("target/deploy").join(STACK).join("lab");
        assert!(!folder.join("webhook-secret").exists());
        let text = fs::read_to_string(folder.join("driftless.yaml"))?;
        assert!(text.contains("\n  components: [no-webhook]\n") && !text.contains("${"), "{text}");
        assert!(text.contains(FORWARDER_IMAGE) && !said.contains("FORWARDER_IMAGE"), "{text}\n{said}");
        Ok(())
    }

    /// The parameters that moto would misread if a later deployment keeps their values: numbers and
    /// lists.
    pub(super) fn spelled_out(&self) -> Result<Vec<(String, String)>> {
        let template: Value = serde_saphyr::from_str(&fs::read_to_string(self.root.join("infra/template.yaml"))?)?;
        let all = template["Parameters"].as_object().into_iter().flatten();
        let wanted = all.filter(|(_, parameter)| {
            let kind = parameter["Type"].as_str().unwrap_or_default();
            !parameter["Default"].is_null() && (kind == "Number" || kind.contains("List"))
        });
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        Ok(wanted.map(|(name, parameter)| (name.clone(), text(&parameter["Default"]))).collect())
    }

    /// Deploys the same once more, in the way after which moto shows the outputs.
    pub(super) async fn bring_outputs(&self, parameters: &[(String, String)], [subnets, groups]: [&str; 2]) -> Result<()> {
        let tags = TAGGED.map(|(key, value)| format!("{key}={value}")).join(",");
        let lists = [("ClusterNames", "prod,lab"), ("Subnets", subnets), ("SecurityGroups", groups), ("TaskTags", &*tags)];
        let lists = lists.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given: BTreeMap<_, _> = parameters.iter().cloned().chain(lists).collect();
        let mut all = self.described("Parameters").await?;
        for parameter in all.as_array_mut().context("parameters")? {
            if let Some(value) = parameter["ParameterKey"].as_str().and_then(|name| given.get(name)) {
                parameter["ParameterValue"] = value.as_str().into();
            }
        }
        let file = self.root.join("parameters.json");
        fs::write(&file, all.to_string())?;
        let template = format!("file://{}/target/deploy/{STACK}/template.yaml", self.root.display());
        let parameters = format!("file://{}", file.display());
        let mut update = vec!["cloudformation", "update-stack", "--stack-name", STACK, "--capabilities", "CAPABILITY_NAMED_IAM"];
        update.extend(["--template-body", &template, "--parameters", &parameters]);
        self.aws.run(&update).await.map(drop)
    }

    pub(super) async fn described(&self, part: &str) -> Result<Value> {
        let query = format!("Stacks[0].{part}");
        let words = ["cloudformation", "describe-stacks", "--stack-name", STACK, "--query", &query];
        Ok(serde_json::from_str(&self.aws.run(&words).await?)?)
    }

    /// Checks that a cluster that is no longer named loses its access, and is not dropped by
    /// mistake.
    pub(super) async fn retire(&self, variables: &[(&str, &str)], kubeconfig: &str, eks: &Aws<'_>) -> Result<()> {
        let renamed = self.root.join("renamed.yaml").to_string_lossy().into_owned();
        fs::write(&renamed, fs::read_to_string(kubeconfig)?.replace("\"prod\"", "\"renamed\""))?;
        let (code, said) = self.script("deploy", &[variables, &[("KUBECONFIG_FILE", &*renamed)]].concat()).await?;
        ensure!(code == 1 && said.contains("has no context prod, which is served now"), "{said}");
        let (code, said) = self.script("deploy", &[variables, &[("CLUSTERS", "lab")]].concat()).await?;
        ensure!(code == 0, "{said}");
        for line in [
            "cluster prod: no longer served; in it, delete",
            "stack driftless-prod: deleting",
            "secret driftless/kubeconfig: changed",
        ] {
            ensure!(said.contains(&format!("deploy: {line}")), "{line:?} is not in: {said}");
        }
        assert_eq!(inventory(eks).await?[0], json!([]), "nothing is left of the cluster that is served no more");
        Ok(())
    }

    /// Checks that the manifests for a cluster have the outputs' values, and that the script for
    /// its key has no key.
    pub(super) async fn rendered(&self, cluster: &str, tag: &str) -> Result<()> {
        let outputs = self.described("Outputs").await?;
        let queue = list(&outputs).iter().find(|output| output["OutputKey"] == "HintsQueueUrl").context("an output")?;
        let folder = self.root.join("target/deploy").join(STACK).join(cluster);
        let text = fs::read_to_string(folder.join("driftless.yaml"))?;
        assert!(!text.contains("${"), "a placeholder is left: {text}");
        let documents: Vec<Value> = text.split("\n---\n").map(serde_saphyr::from_str).collect::<Result<_, _>>()?;
        assert_eq!([&documents[0]["spec"]["url"], &documents[0]["spec"]["ref"]["tag"]], [SOURCE[0], tag]);
        let commit = documents[0]["spec"]["ref"]["commit"].as_str().unwrap_or_default().len();
        assert_eq!(commit, if tag == SOURCE[1] { 40 } else { 0 }, "the commit of a tag that is there");
        let patch = documents[1]["spec"]["patches"][0]["patch"].as_str().context("a patch")?;
        let values: Value = serde_saphyr::from_str(patch)?;
        let expected = json!({
            "CLUSTER": cluster, "AWS_REGION": REGION, "HINTS_QUEUE_URL": queue["OutputValue"], "WEBHOOK_URL": self.webhook,
            "FORWARDER_IMAGE": FORWARDER_IMAGE,
        });
        assert_eq!(values["data"], expected);

        let script = folder.join("webhook-secret");
        let mode = fs::metadata(&script)?.permissions().mode();
        assert_eq!(mode & 0o100, 0o100, "it can be run");
        let text = fs::read_to_string(&script)?;
        assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
        Ok(())
    }

    /// Applies the final commands of a deployment to a real API server, which only knows the kind
    /// of kustomize-controller.
    pub(super) async fn applied(&self, supervisor: &Supervisor, context: &str, tag: &str) -> Result<()> {
        self.rendered(context, tag).await?;
        let dirs = self.aws.dirs;
        let etcd = cluster::start_etcd(dirs, supervisor).await?;
        let cluster = Cluster::start(dirs, supervisor, &project()?, &etcd, None).await?;
        let admin = cluster.client("admin").await?;
        cluster::apply_yaml(&admin, &definition("kustomize.toolkit.fluxcd.io", "Kustomization")).await?;
        let kubectl = async |words: &[&str]| {
            let mut kubectl = command(dirs, dirs.tool("kubectl")?);
            kubectl.arg("--kubeconfig").arg(&cluster.admin_kubeconfig).args(words);
            output(kubectl).await
        };
        kubectl(&["config", "rename-context", cluster::NAME, context]).await?;

        let folder = self.root.join("target/deploy").join(STACK).join(context);
        let kubeconfig = cluster.admin_kubeconfig.to_string_lossy();
        let (code, said) = self.run(folder.join("webhook-secret"), &[("KUBECONFIG", &*kubeconfig)]).await?;
        ensure!(code == 0, "{said}");
        let keys: Keys = serde_json::from_str(&secret(&self.aws, "webhook-keys").await?)?;
        let made = Api::<Secret>::namespaced(admin, "flux-system").get("driftless").await?.data.context("data")?;
        assert!(made["token"].0 == keys[context]["flux"].as_bytes(), "it is the key of {context}");

        let path = folder.join("driftless.yaml").to_string_lossy().into_owned();
        ready::until("the file is applied", ready::START, async || {
            kubectl(&["--context", context, "apply", "-f", &path]).await.map(drop)
        })
        .await
    }

    /// Checks that the doctor's AWS part finds exactly what moto lacks.
    pub(super) async fn examine(&self) -> Result<()> {
        self.aws.run(&["ecr", "create-repository", "--repository-name", RUNNER]).await?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json", "layers": [],
            "config": { "mediaType": "application/vnd.docker.container.image.v1+json", "size": 1, "digest": "sha256:0" },
        });
        let manifest = manifest.to_string();
        let push = ["ecr", "put-image", "--repository-name", RUNNER, "--image-tag", "0.1.0", "--image-manifest", &manifest];
        self.aws.run(&push).await?;
        let (code, said) = self.run(program("doctor")?, &[("ONLY", "aws"), ("STACK", STACK)]).await?;
        assert_eq!(code, 1, "{said}");
        let bad: Vec<_> = said.lines().filter(|line| line.starts_with("FAIL") || line.starts_with("warn")).collect();
        assert_eq!(bad, GAPS, "{said}");
        for name in FUNCTIONS {
            assert!(said.contains(&format!("ok    function {STACK}-{name}: Active, x86_64\n")), "{name}: {said}");
        }
        for line in [
            "queue driftless-hints: feeds driftless-reconciler, up to 10 batches of 10 at once",
            "queue driftless-sources.fifo: feeds driftless-fetcher, up to 10 batches of 1 at once",
            "queue driftless-launches: feeds driftless-launcher, up to 5 batches of 5 at once",
            "queue driftless-runs: feeds driftless-recorder, up to 5 batches of 5 at once",
            "queue driftless-hints-dead-letters: empty",
            "secret driftless/kubeconfig/reconciler: cluster prod is the EKS cluster production",
            "secret driftless/kubeconfig/reconciler: cluster lab has a token or a client certificate",
            "secret driftless/kubeconfig/sweeper: cluster other has a token or a client certificate",
            "secret driftless/webhook-keys: has a key for each cluster",
            &format!("webhook {}: answers, and refuses unsigned requests", self.webhook),
        ] {
            assert!(said.contains(&format!("ok    {line}\n")), "{line:?} is not in: {said}");
        }
        Ok(())
    }
}
