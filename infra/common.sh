# Shared by infra/deploy and infra/undeploy, which set $program first.
# shellcheck shell=bash

# The folder for files with secrets, which is deleted when the script ends.
umask 077
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '%s: %s\n' "${program:?}" "$*" >&2; }
fail() {
  local line
  printf '%s: %s\n' "$program" "$1" >&2
  shift
  for line; do [ -z "$line" ] || printf '  %s\n' "$line" >&2; done
  exit 1
}

# need PROGRAM REMEDY
need() { type -P "$1" >/dev/null || fail "$1 is not on PATH" "$2"; }

# The caller: sets $region, $account and $partition. Version 1 of the AWS CLI reads another variable than the SDKs.
identify() {
  export AWS_PAGER='' AWS_DEFAULT_OUTPUT=json
  region=${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}
  [ -n "$region" ] || fail 'no region is set' 'set AWS_REGION, such as AWS_REGION=eu-west-1'
  export AWS_REGION=$region AWS_DEFAULT_REGION=$region
  local error caller
  error=$work/error
  caller=$(aws sts get-caller-identity --query Arn --output text 2>"$error") ||
    fail "AWS refused these credentials: $(tail -n 1 "$error")" 'log in (aws sso login, AWS_PROFILE, …), and check them with aws sts get-caller-identity'
  # shellcheck disable=SC2034 # the scripts use them
  IFS=: read -r _ partition _ _ account _ <<<"$caller"
}

# stack_state NAME: its status; empty if it does not exist. Any other failure ends the script.
stack_state() {
  local answer
  if answer=$(aws cloudformation describe-stacks --stack-name "$1" --query 'Stacks[0].StackStatus' --output text 2>&1); then
    printf '%s' "$answer"
  elif [[ $answer != *"does not exist"* ]]; then
    fail "cannot read stack $1: $(tail -n 1 <<<"$answer")"
  fi
}

# output STACK KEY
output() {
  local value
  value=$(aws cloudformation describe-stacks --stack-name "$1" --query "(Stacks[0].Outputs || \`[]\`)[?OutputKey=='$2'].OutputValue" --output text)
  [ -n "$value" ] || fail "stack $1 has no output $2" 'it was deployed from another release; run make deploy'
  printf '%s' "$value"
}

# parameter STACK NAME: its value; empty if the stack does not have it.
parameter() {
  aws cloudformation describe-stacks --stack-name "$1" --output text \
    --query "(Stacks[0].Parameters || \`[]\`)[?ParameterKey=='$2'].ParameterValue"
}

# why_failed NAME SINCE: the first failure among a stack's events since then (ISO 8601, UTC) that does not follow from another.
why_failed() {
  aws cloudformation describe-stack-events --stack-name "$1" --output text \
    --query "reverse(StackEvents[?ends_with(ResourceStatus, '_FAILED')].[Timestamp,LogicalResourceId,ResourceType,ResourceStatus,ResourceStatusReason])" |
    awk -F '\t' -v since="$2" '$1 >= since && $5 !~ /cancelled/ { printf "%s (%s) %s: %s\n", $2, $3, $4, $5; exit }'
}

# in_region REGION COMMAND...
in_region() { AWS_REGION=$1 AWS_DEFAULT_REGION=$1 "${@:2}"; }

# delete_stack NAME: does nothing if it does not exist.
delete_stack() {
  local state started
  state=$(stack_state "$1")
  [ -n "$state" ] || return 0
  started=$(date -u +%Y-%m-%dT%H:%M:%S)
  say "stack $1: deleting"
  aws cloudformation delete-stack --stack-name "$1"
  aws cloudformation wait stack-delete-complete --stack-name "$1" ||
    fail "stack $1 was not deleted" "$(why_failed "$1" "$started" || true)" 'run it again; it skips what is already deleted'
}

# copies STACK: the repositories of the images that infra/deploy copied, one per line.
copies() {
  local names
  names=$(aws ecr describe-repositories --output text --query "repositories[?starts_with(repositoryName, '$1/copies/')].[repositoryName]") ||
    fail "cannot list the repositories of ECR" 'allow ecr:DescribeRepositories'
  printf '%s' "$names"
}

# has_bucket NAME
has_bucket() { aws s3api head-bucket --bucket "$1" >/dev/null 2>&1; }

# secret_value NAME FILE: fails if the secret does not exist.
secret_value() {
  local error
  if ! error=$(aws secretsmanager get-secret-value --secret-id "$1" --query SecretString --output text 2>&1 >"$2"); then
    [[ $error == *ResourceNotFoundException* ]] && return 1
    fail "cannot read secret $1: $(tail -n 1 <<<"$error")" \
      "if it is marked for deletion: aws secretsmanager restore-secret --secret-id $1"
  fi
}

config() { kubectl --kubeconfig "$1" config "${@:2}"; }

# The functions that call clusters.
callers=(reconciler fetcher launcher recorder sweeper)

# clusters_of KUBECONFIG: the clusters of its contexts, which are named CLUSTER, or CLUSTER.FUNCTION for each of the functions.
clusters_of() {
  local name
  config "$1" get-contexts -o name | while read -r name; do
    for function in "${callers[@]}"; do name=${name%".$function"}; done
    printf '%s\n' "$name"
  done | awk '!seen[$0]++'
}

# eks_of KUBECONFIG CONTEXT: name and region of the EKS cluster, if its user has the form of `aws eks update-kubeconfig`.
eks_of() {
  config "$1" view --minify --context "$2" -o json 2>/dev/null | python3 -c '
import json, sys
user = (json.loads(sys.stdin.read() or "{}").get("users") or [{}])[0].get("user") or {}
run = user.get("exec") or {}
args = run.get("args") or []
value = lambda name: next((args[i + 1] for i, arg in enumerate(args[:-1]) if arg == name), "-")
if run.get("command", "").rsplit("/", 1)[-1] == "aws" and "get-token" in args:
    print(value("--cluster-name"), value("--region"))'
}
