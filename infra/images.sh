# The images of infra/deploy: copies them into the account's ECR, and pins them to digests.
# shellcheck shell=bash

without='COPY_IMAGES=no deploys without copies; docs/images.md has the limits of pulls that then apply'

# Lists the images in $images by name, and those to copy into the account's ECR in $foreign and $digests; $absent has those that are not
# there yet. Changes nothing, so a copy that could not be made ends the script before anything is changed.
check_copies() {
  local name word context others=()
  [[ ${COPY_IMAGES:=yes} == @(yes|no) ]] || fail "COPY_IMAGES=$COPY_IMAGES is not supported" 'use yes or no'
  registry=$account.dkr.ecr.$region.amazonaws.com
  [[ $partition != aws-cn ]] || registry+=.cn
  images=([pulumi]=$(setting DefaultImage) [runner]=${RUNNER_IMAGE:-$(setting RunnerImage)} [forwarder]=${FORWARDER_IMAGE:-})
  for word in $(setting RuntimeImages | tr , ' '); do images[pulumi-${word%%=*}]=${word#*=}; done
  for name in "${!images[@]}"; do
    if [ -z "${images[$name]}" ]; then
      unset "images[$name]"
    elif ! is_own "${images[$name]}"; then
      foreign[$name]=${images[$name]}
    fi
  done
  for context in "${clusters[@]}"; do [ -n "$(eks_of "$kubeconfig" "$context")" ] || others+=("$context"); done
  if [ -n "${foreign[forwarder]:-}" ] && [ ${#others[@]} != 0 ]; then
    [ "$COPY_IMAGES" = no ] ||
      say "image ${foreign[forwarder]}: not copied, because the nodes of clusters outside EKS have no login to ECR: ${others[*]}"
    unset 'foreign[forwarder]'
  fi
  [ "${CHECK:-yes}" = no ] || check_pulls
  copier=$(type -P crane || type -P skopeo || true)
  repositories=
  if [ "$COPY_IMAGES" = no ]; then
    [ ${#foreign[@]} = 0 ] || say "COPY_IMAGES=no: these images stay in other registries, which limit pulls: ${foreign[*]}"
    limits | sort -u >&2
  else
    [ -n "$copier" ] || [ ${#foreign[@]} = 0 ] ||
      fail "neither crane nor skopeo is on PATH, and one of them copies the images into this account's ECR; nothing was changed" \
        'install crane: tests/tools/install registry, or https://github.com/google/go-containerregistry' "$without"
    [ ${#foreign[@]} = 0 ] && [ -z "${TAGS:-}" ] || repositories=$(copies "$stack")
  fi
  [ -z "$copier" ] || log_in
  [ "$COPY_IMAGES" = no ] || for name in "${!foreign[@]}"; do check_copy "$name"; done
}

# is_own IMAGE: whether it is in the ECR of this account, in any Region.
is_own() { [[ $1 == "$account".* ]] && ecr_region "$1" >/dev/null; }

# ecr_region IMAGE: the Region of its registry; fails if that is none of ECR. Tokens of AWS go to no other hosts.
ecr_region() {
  [[ $1 =~ ^[0-9]{12}\.dkr[.-]ecr(-fips)?\.([a-z0-9-]+)\.(amazonaws\.com(\.cn)?|on\.aws)/ ]] && printf '%s' "${BASH_REMATCH[2]}"
}

# Checks that the role of tasks may pull the images that tasks then pull from ECR.
check_pulls() {
  local name image place pulled=() closed=()
  for name in "${!images[@]}"; do
    image=${images[$name]}
    [ "$name" != forwarder ] || continue
    if [ "$COPY_IMAGES" = yes ] && [ -n "${foreign[$name]:-}" ]; then
      pulled+=("arn:$partition:ecr:$region:$account:repository/$stack/copies/$name")
    elif place=$(ecr_region "$image"); then
      pulled+=("arn:$partition:ecr:$place:${image%%.*}:repository/$(tagless "${image#*/}")")
    fi
  done
  python3 - "$(setting ImageRepositories)" "arn:$partition:ecr:*:$account:repository" "$stack/copies" "${pulled[@]}" \
    >"$work/closed" <<'PYTHON'
import fnmatch, sys
given, own, copies, *pulled = sys.argv[1:]
default = [f"{own}/driftless-*", f"{own}/driftless/*", f"{own}/{copies}/*"]  # of infra/template.yaml
patterns = [one.strip() for one in given.split(",") if one.strip()] or default
closed = [arn for arn in pulled if not any(fnmatch.fnmatchcase(arn, one.replace("[", "[[]")) for one in patterns)]
closed = sorted({f"{arn.rpartition('/')[0]}/*" if f":repository/{copies}/" in arn else arn for arn in closed})
if closed:
    print(", ".join(closed), ",".join(patterns + closed), sep="\n")
PYTHON
  mapfile -t closed <"$work/closed"
  [ ${#closed[@]} = 0 ] ||
    fail "ImageRepositories does not let tasks pull from ${closed[0]}; nothing was changed" \
      "add it: PARAMETERS=ImageRepositories=${closed[1]}" 'if the policy of the repository admits the role of tasks: CHECK=no' \
      "$([[ ${closed[0]} != *"/$stack/copies/"* ]] || printf %s "$without")"
}

# Logs in to the registries of ECR that images are copied to or read from, in settings of its own: the user's may name a credential helper
# for ECR, which stores no login. A token is valid for the registries of all accounts in its Region.
log_in() {
  local name error=$work/error
  local -A hosts=()
  [ "$COPY_IMAGES" = no ] || [ ${#foreign[@]} = 0 ] || hosts[$registry]=$region
  for name in "${images[@]}"; do
    is_own "$name" || ! ecr_region "$name" >/dev/null || hosts[${name%%/*}]=$(ecr_region "$name")
  done
  [ ${#hosts[@]} != 0 ] || return 0
  mkdir "$work/docker"
  for name in "${!hosts[@]}"; do
    if aws --region "${hosts[$name]}" ecr get-login-password >"$work/token" 2>"$error"; then
      printf '%s %s\n' "$name" "$(<"$work/token")"
    elif [ "$COPY_IMAGES" = yes ]; then
      fail "cannot log in to $name: $(tail -n 1 "$error"); nothing was changed" 'allow ecr:GetAuthorizationToken' "$without"
    fi
  done >"$work/logins"
  python3 - "$work/docker" <<'PYTHON' 2>"$error" ||
import base64, json, os, sys
folder, variable = sys.argv[1], os.environ.get
places = [os.path.join(variable("DOCKER_CONFIG") or os.path.expanduser("~/.docker"), "config.json"), variable("REGISTRY_AUTH_FILE", ""),
          os.path.join(variable("XDG_RUNTIME_DIR", "/run/user"), "containers/auth.json")]
settings = next((json.load(open(place)) for place in places if os.path.isfile(place)), {})
with open(os.path.join(os.path.dirname(folder), "logins")) as lines:
    own = {host: {"auth": base64.b64encode(f"AWS:{token}".encode()).decode()} for host, token in map(str.split, lines)}
settings["auths"] = {**settings.get("auths", {}), **own}
# An empty helper: the login is in this file.
settings["credHelpers"] = {**settings.get("credHelpers", {}), **dict.fromkeys(own, "")}
for name, content in (("config.json", settings), ("ecr.json", {"auths": own})):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(content, file)
PYTHON
    fail "the logins of docker or podman cannot be read: $(tail -n 1 "$error"); nothing was changed" \
      'correct the file, or name another folder: DOCKER_CONFIG=…'
  export DOCKER_CONFIG=$work/docker
}

# check_copy NAME: reads the digest of the image of that name, and whether the account has its copy or may get it.
check_copy() {
  local image=${foreign[$1]} copy error=$work/error
  digests[$1]=${image#*@}
  [[ $image == *@* ]] || digests[$1]=$(digest_of "$image" 2>"$error") || unreadable "$image"
  if grep -qxF "$stack/copies/$1" <<<"$repositories"; then
    copy=$registry/$stack/copies/$1@${digests[$1]}
    ! digest_of "$copy" >/dev/null 2>"$error" || return 0
    grep -qiE '(manifest|name)[_ ]unknown' "$error" ||
      fail "cannot read whether $copy exists: $(tail -n 1 "$error"); nothing was changed" \
        "allow pulls from $stack/copies/* (docs/aws.md), or run it again if the registry did not answer" "$without"
  fi
  [[ $image != *@* ]] || digest_of "$(tagless "$image")@${digests[$1]}" >/dev/null 2>"$error" || unreadable "$image"
  # It stores nothing. AWS checks the right before it looks for the repository, which may not exist yet.
  aws ecr initiate-layer-upload --repository-name "$stack/copies/$1" >/dev/null 2>"$error" || grep -q RepositoryNotFound "$error" ||
    fail "cannot push to $registry/$stack/copies/$1: $(tail -n 1 "$error"); nothing was changed" \
      "allow pushes to $stack/copies/* (docs/aws.md), or run it again if ECR did not answer" "$without"
  absent[$1]=$image
}

unreadable() {
  local remedy="log in to its registry with ${copier##*/}, or correct its name"
  ! ecr_region "$1" >/dev/null ||
    remedy='allow ecr:BatchGetImage and ecr:GetDownloadUrlForLayer on it, also in the policy of its repository, or correct its name'
  fail "cannot read image $1: $(tail -n 1 "$work/error"); nothing was changed" "$remedy" "$without"
}

# limits: the limits of the registries of $foreign, for clients without a login.
limits() {
  local image
  for image in "${foreign[@]}"; do
    if [[ $image == public.ecr.aws/* ]]; then
      echo '  Amazon ECR Public: ten pulls a second by tasks on AWS, which AWS does not raise'
    elif [[ $image != */* || ! ${image%%/*} =~ [.:] || ${image%%/*} == *docker.io ]]; then
      echo '  Docker Hub: 100 pulls in six hours from one address without a login'
    else
      echo "  ${image%%/*}: its documentation has them"
    fi
  done
}

# tagless IMAGE: its name without a tag and a digest; the port of a registry stays.
tagless() { sed 's/@.*//; s/:[^:/]*$//' <<<"$1"; }

# digest_of IMAGE: the digest that its tag has now.
digest_of() {
  local login=()
  case ${copier##*/} in
    crane) crane digest "$1" ;;
    skopeo)
      ! ecr_region "$1" >/dev/null || login=(--authfile "$work/docker/ecr.json")
      skopeo inspect "${login[@]}" --raw "docker://$1" | sha256sum | sed 's/^/sha256:/; s/ .*//' ;;
  esac
}

# own_digest_of IMAGE: the same for an image in the account's ECR, which needs no login.
own_digest_of() {
  local name=${1#*/} tag=latest
  [[ $name != *:* ]] || tag=${name##*:}
  aws --region "$(ecr_region "$1")" ecr describe-images --repository-name "${name%:*}" --image-ids "imageTag=$tag" --output text \
    --query 'imageDetails[0].imageDigest'
}

# Copies $absent with all platforms, which keeps the digest, and replaces the images by the copies, by digest. Repositories of earlier
# copies get changed TAGS.
copy_images() {
  local name image repository login error=$work/error
  for name in "${!digests[@]}"; do
    image=${foreign[$name]} repository=$stack/copies/$name
    if [ -z "${absent[$name]:-}" ]; then
      say "image $image: already copied"
    else
      if ! grep -qxF "$repository" <<<"$repositories"; then
        aws ecr create-repository --repository-name "$repository" --image-tag-mutability IMMUTABLE \
          --image-scanning-configuration scanOnPush=true --tags "file://$work/tags.json" >/dev/null 2>"$error" ||
          fail "repository $repository was not created: $(tail -n 1 "$error")" 'allow ecr:CreateRepository and ecr:TagResource' "$without"
        say "repository $repository: created"
      fi
      say "image $image: copying to $registry/$repository (a large one takes minutes)"
      case ${copier##*/} in
        crane) crane copy "$(tagless "$image")@${digests[$name]}" "$registry/$repository:${digests[$name]#*:}" ;;
        skopeo)
          login=(--dest-authfile "$work/docker/ecr.json")
          ! ecr_region "$image" >/dev/null || login+=(--src-authfile "$work/docker/ecr.json")
          skopeo copy --all --preserve-digests "${login[@]}" "docker://$(tagless "$image")@${digests[$name]}" \
            "docker://$registry/$repository:${digests[$name]#*:}" ;;
      esac >"$error" 2>&1 || fail "the image $image was not copied: $(tail -n 1 "$error")" \
        "allow pushes to $stack/copies/* (docs/aws.md), or run it again; it skips the copied images" "$without"
    fi
    use_image "$name" "$registry/$repository@${digests[$name]}"
  done
  [ -n "${TAGS:-}" ] || return 0
  for repository in $repositories; do
    aws ecr tag-resource --resource-arn "arn:$partition:ecr:$region:$account:repository/$repository" --tags "file://$work/tags.json" \
      2>"$error" || fail "repository $repository was not tagged: $(tail -n 1 "$error")" 'allow ecr:TagResource'
  done
}

# Replaces the tags of $images by the digests that they have now. Where no registry answers, the tag stays.
pin_images() {
  local name image digest read kept=() error=$work/error
  for name in "${!images[@]}"; do
    image=${images[$name]} read=digest_of
    [[ $image != *@* ]] || continue
    if is_own "$image"; then
      read=own_digest_of
    elif [ -z "$copier" ]; then
      kept+=("$image")
      continue
    fi
    if digest=$("$read" "$image" 2>"$error"); then
      say "image $image: pinned to $digest"
      use_image "$name" "$(tagless "$image")@$digest"
    else
      say "warning: image $image: keeps its tag, because its digest cannot be read: $(tail -n 1 "$error")"
    fi
  done
  [ ${#kept[@]} = 0 ] || say "warning: neither crane nor skopeo is on PATH, so these images keep their tags: ${kept[*]}"
}

# use_image NAME IMAGE: replaces the image of that name in $images.
use_image() {
  local word list=()
  images[$1]=$2
  case $1 in
    runner)
      RUNNER_IMAGE=
      set_parameter RunnerImage "$2" ;;
    forwarder) FORWARDER_IMAGE=$2 ;;
    pulumi) set_parameter DefaultImage "$2" ;;
    pulumi-*)
      for word in $(setting RuntimeImages | tr , ' '); do
        [[ $word != "${1#pulumi-}="* ]] || word=${1#pulumi-}=$2
        list+=("$word")
      done
      set_parameter RuntimeImages "$(IFS=,; echo "${list[*]}")" ;;
  esac
}
