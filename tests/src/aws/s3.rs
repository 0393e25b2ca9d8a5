//! The IAM actions of a request to S3.

use axum::http::{HeaderMap, Method};

use super::policy::Demand;

/// The KMS key that an object is encrypted under, in requests and answers.
pub const SEAL_KEY: &str = "x-amz-server-side-encryption-aws-kms-key-id";

/// A request to S3.
pub struct Request {
    /// The permissions that the caller needs, all of them.
    pub demands: Vec<Demand>,
    /// The bucket's ARN: a caller that may not list it gets 403 instead of 404.
    pub bucket: String,
    /// The object's ARN.
    pub object: String,
    /// It reads one object.
    pub reads: bool,
    /// It has a condition on the existing object.
    pub conditional: bool,
}

impl Request {
    /// Returns whether method, path and query are those of `DeleteObjects`, whose body names the
    /// objects.
    pub fn deletes_objects(method: &Method, query: &str) -> bool {
        *method == Method::POST && query.split('&').any(|parameter| matches!(parameter, "delete" | "delete="))
    }

    /// Parses a `DeleteObjects`. S3 answers for each object, and deletes those that the caller may
    /// delete; here one forbidden object refuses the whole call.
    pub fn parse_deletion(path: &str, body: &str) -> Option<Self> {
        let bucket = format!("arn:aws:s3:::{}", percent_decode(path.trim_matches('/'))?);
        let keys = body.split("<Key>").skip(1).filter_map(|rest| Some(rest.split_once("</Key>")?.0));
        let unescaped =
            keys.map(|key| key.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&"));
        let demands: Vec<_> = unescaped.map(|key| Demand::new("s3:DeleteObject", format!("{bucket}/{key}"))).collect();
        let object = demands.first()?.resource.clone();
        Some(Self { demands, bucket, object, reads: false, conditional: false })
    }

    /// Parses method, path and query; buckets are always in the path. `None` for a request that
    /// Driftless never makes.
    pub fn parse(method: &Method, path: &str, query: &str, headers: &HeaderMap) -> Option<Self> {
        let (bucket, key) = path.strip_prefix('/')?.split_once('/').map_or((path.strip_prefix('/')?, ""), |parts| parts);
        let bucket = format!("arn:aws:s3:::{}", percent_decode(bucket)?);
        let object = format!("{bucket}/{}", percent_decode(key)?);
        // The SDKs repeat the operation in `x-id`.
        let parameters: Vec<_> = query
            .split('&')
            .filter_map(|pair| pair.split('=').next())
            .filter(|name| !name.is_empty() && *name != "x-id" && !name.starts_with("X-Amz-"))
            .collect();
        let has = |name: &str| parameters.contains(&name);
        let only = |known: &[&str]| parameters.iter().all(|name| known.contains(name));
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // `creates`: as opposed to the start and the parts of an upload.
        let write = |creates: bool| {
            let demand = Demand::new("s3:PutObject", &object).with("s3:ObjectCreationOperation", creates.to_string());
            let conditions = [
                "if-none-match",
                "x-amz-storage-class",
                "x-amz-server-side-encryption",
                "x-amz-server-side-encryption-customer-algorithm",
            ];
            let given = conditions.into_iter().filter_map(|name| Some((name, header(name)?)));
            given.fold(demand, |demand, (name, value)| demand.with(&format!("s3:{name}"), value))
        };

        let demands = if key.is_empty() {
            let listing =
                ["list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "marker"];
            match *method {
                Method::GET | Method::HEAD if only(&listing) => {
                    let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).and_then(percent_decode);
                    vec![Demand::new("s3:ListBucket", &bucket).with("s3:prefix", prefix.unwrap_or_default())]
                }
                _ => return None,
            }
        } else {
            match *method {
                Method::GET | Method::HEAD if only(&["partNumber", "response-content-type"]) => {
                    vec![Demand::new("s3:GetObject", &object)]
                }
                Method::PUT if only(&["partNumber", "uploadId"]) => {
                    let mut demands = vec![write(!has("uploadId"))];
                    if let Some(source) = header("x-amz-copy-source") {
                        let source = percent_decode(source.strip_prefix('/').unwrap_or(source))?;
                        demands.push(Demand::new("s3:GetObject", format!("arn:aws:s3:::{source}")));
                    }
                    if let Some(seal_key) = header(SEAL_KEY) {
                        demands.push(seal("kms:GenerateDataKey", seal_key, &object));
                    }
                    if headers.contains_key("x-amz-tagging") {
                        demands.push(Demand::new("s3:PutObjectTagging", &object));
                    }
                    if headers.contains_key("if-match") {
                        demands.push(Demand::new("s3:GetObject", &object));
                    }
                    demands
                }
                Method::POST if has("uploads") || has("uploadId") => vec![write(has("uploadId"))],
                Method::DELETE if has("uploadId") => vec![Demand::new("s3:AbortMultipartUpload", &object)],
                Method::DELETE if only(&[]) => vec![Demand::new("s3:DeleteObject", &object)],
                _ => return None,
            }
        };
        let reads = demands.iter().any(|demand| demand.action == "s3:GetObject");
        let conditional = headers.contains_key("if-none-match") || headers.contains_key("if-match");
        let conditional = conditional && *method != Method::GET && *method != Method::HEAD;
        Some(Self { demands, bucket, object, reads, conditional })
    }
}

/// The KMS permission that S3 requires of the caller, for an object.
pub fn seal(action: &str, key: &str, object: &str) -> Demand {
    // arn:PARTITION:kms:REGION:ACCOUNT:key/ID
    let region = key.split(':').nth(3).unwrap_or_default();
    let demand = Demand::new(action, key).with("kms:ViaService", format!("s3.{region}.amazonaws.com"));
    demand.with("kms:EncryptionContext:aws:s3:arn", object)
}

/// Undoes %XX; `None` if that is not UTF-8 or not well-formed.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(method: &Method, target: &str, headers: &[(&'static str, &str)]) -> Option<Vec<(String, String)>> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let request = Request::parse(method, path, query, &headers)?;
        Some(request.demands.into_iter().map(|demand| (demand.action, demand.resource.replace("arn:aws:s3:::", ""))).collect())
    }

    #[test]
    fn requests_come_out_as_iam_names_them() {
        let one = |action: &str, resource: &str| Some(vec![(action.to_owned(), resource.to_owned())]);
        assert_eq!(
            actions(&Method::GET, "/b/tasks/A%3Aa/in/spec?x-id=GetObject", &[]),
            one("s3:GetObject", "b/tasks/A:a/in/spec")
        );
        assert_eq!(actions(&Method::HEAD, "/b/k", &[]), one("s3:GetObject", "b/k"));
        assert_eq!(actions(&Method::PUT, "/b/k?x-id=PutObject", &[]), one("s3:PutObject", "b/k"));
        assert_eq!(actions(&Method::POST, "/b/k?uploads", &[]), one("s3:PutObject", "b/k"));
        assert_eq!(actions(&Method::DELETE, "/b/k?x-id=DeleteObject", &[]), one("s3:DeleteObject", "b/k"));
        assert_eq!(actions(&Method::GET, "/b?list-type=2&prefix=tasks%2F", &[]), one("s3:ListBucket", "b"));
        assert_eq!(actions(&Method::GET, "/b/?list-type=2", &[]), one("s3:ListBucket", "b"));
    }

    #[test]
    fn a_copy_reads_its_source_and_a_conditional_overwrite_its_target() {
        let copy = actions(&Method::PUT, "/b/to", &[("x-amz-copy-source", "b/from%3A1")]).unwrap();
        assert_eq!(copy[1], ("s3:GetObject".into(), "b/from:1".into()));
        let overwrite = actions(&Method::PUT, "/b/k", &[("if-match", "\"etag\"")]).unwrap();
        assert_eq!(overwrite.len(), 2);
        assert_eq!(actions(&Method::PUT, "/b/k", &[("if-none-match", "*")]).unwrap().len(), 1);
    }

    #[test]
    fn policies_see_the_condition_of_a_write_and_whether_it_creates_an_object() {
        let context = |method: Method, target: &str, header: Option<&str>| {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let headers = header.map(|value| (axum::http::header::IF_NONE_MATCH, value.parse().unwrap())).into_iter().collect();
            let request = Request::parse(&method, path, query, &headers).unwrap();
            serde_json::to_value(&request.demands[0].context).unwrap()
        };
        let plain = serde_json::json!({ "s3:objectcreationoperation": "true" });
        let once = serde_json::json!({ "s3:objectcreationoperation": "true", "s3:if-none-match": "*" });
        let part = serde_json::json!({ "s3:objectcreationoperation": "false" });
        assert_eq!(context(Method::PUT, "/b/k", None), plain);
        assert_eq!(context(Method::PUT, "/b/k", Some("*")), once);
        assert_eq!(context(Method::POST, "/b/k?uploads", None), part);
        assert_eq!(context(Method::PUT, "/b/k?partNumber=1&uploadId=u", None), part);
        assert_eq!(context(Method::POST, "/b/k?uploadId=u", Some("*")), once);
    }

    #[test]
    fn deletion_of_objects_demands_the_right_for_each() {
        assert!(
            Request::deletes_objects(&Method::POST, "delete") && !Request::deletes_objects(&Method::DELETE, "x-id=DeleteObject")
        );
        let body = "<Delete><Object><Key>tasks/A:a/in/spec</Key></Object><Object><Key>a&amp;b</Key></Object></Delete>";
        let request = Request::parse_deletion("/b/", body).unwrap();
        let demands: Vec<_> = request.demands.iter().map(|demand| (&*demand.action, &*demand.resource)).collect();
        let delete = "s3:DeleteObject";
        assert_eq!(demands, [(delete, "arn:aws:s3:::b/tasks/A:a/in/spec"), (delete, "arn:aws:s3:::b/a&b")]);
        assert!(Request::parse_deletion("/b", "<Delete></Delete>").is_none());
    }

    #[test]
    fn what_is_not_known_is_refused_rather_than_taken_for_something_else() {
        for (method, target) in [
            (Method::GET, "/b/k?acl"),
            (Method::PUT, "/b/k?tagging"),
            (Method::PUT, "/b?policy"),
            (Method::DELETE, "/b"),
            (Method::GET, "/b/%zz"),
        ] {
            assert_eq!(actions(&method, target, &[]), None, "{target}");
        }
    }
}
