# Runs in a task, as its init container, with the session that ECS gives the task. Exits with 0 only if S3 confines that session to its own
# folder. It reads its own spec and drops it, to prove that a refusal is not caused by the signature.
import datetime, hashlib, hmac, json, os, re, sys, time, urllib.error, urllib.parse, urllib.request

env = os.environ


def fetch(url):
    return json.load(urllib.request.urlopen(url, timeout=10))


arn = fetch(env["ECS_CONTAINER_METADATA_URI_V4"] + "/task")["TaskARN"]
task, region = arn.rsplit("/", 1)[1], arn.split(":")[3]
relative = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
keys = fetch("http://169.254.170.2" + relative if relative else env["AWS_CONTAINER_CREDENTIALS_FULL_URI"])


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def call(service, method, path, query="", body=b""):
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = env.get("AWS_ENDPOINT_URL") or f"https://{service}.{region}.{suffix}"
    at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path = urllib.parse.quote(path, safe="/~")
    headers = {
        "host": urllib.parse.urlsplit(endpoint).netloc,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": at,
        "x-amz-security-token": keys["Token"],
    }
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    request = "\n".join([method, path, query, lines, names, headers["x-amz-content-sha256"]])
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = ("AWS4" + keys["SecretAccessKey"]).encode()
    for part in scope.split("/"):
        key = mac(key, part)
    credential = f"{keys['AccessKeyId']}/{scope}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={mac(key, text).hex()}"
    if body:
        headers["content-type"] = "application/x-www-form-urlencoded"
    url = endpoint + path + ("?" + query if query else "")
    try:
        request = urllib.request.Request(url, data=body or None, headers=headers, method=method)
        answer = urllib.request.urlopen(request, timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.read().decode(errors="replace")


def s3(method, key, query=""):
    return call("s3", method, f"/{env['BUCKET']}" + (f"/{key}" if key else ""), query)


def refused(answer):
    return answer[0] == 403 and "<Code>AccessDenied</Code>" in answer[1]


def check(code, passed, said=""):
    if not passed:
        print(f"driftless: scoping: {code} {said}", flush=True)
        sys.exit(code)


status, text = call("sts", "POST", "/", body=b"Action=GetCallerIdentity&Version=2011-06-15")
userid = re.search("<UserId>([^<]+)</UserId>", text)
check(11, status == 200 and userid and userid[1].endswith(":" + task), f"{status}: {userid and userid[1]} in the task {task}")
userid = userid[1]

# The launcher writes it some seconds after it has started the task.
for _ in range(120):
    status, _text = s3("GET", f"tasks/{userid}/in/spec")
    if status == 200:
        break
    time.sleep(1)
check(12, status == 200, str(status))
other = f"tasks/{userid.split(':')[0]}:{'0' * 32}/out/progress"
check(13, refused(s3("GET", env["OTHER"])), "GET")
check(14, refused(s3("PUT", other)), "PUT")
check(15, refused(s3("GET", "", "list-type=2")), "LIST")
