# The images of infra/deploy: copies them into the account's ECR, and pins them to digests.
# shellcheck shell=bash

without='COPY_IMAGES=no deploys without copies; docs/images.md has the limits of pulls that then apply'

# Lists the images in $images by name, and those to copy into the account's ECR in $foreign and $digests; $absent has those that are not
# there yet. Changes nothing, so a copy that could not be made ends the script before anything is changed.
check_copies() {
  local name word context others=() pulled=() error=$work/error
  [[ ${COPY_IMAGES:=yes} == @(yes|no) ]] || fail "COPY_IMAGES=$COPY_IMAGES is not supported" 'use yes or no'
  registry=$account.dkr.ecr.$region.amazonaws.com
  [[ $partition != aws-cn ]] || registry+=.cn
  images=([pulumi]=$(setting DefaultImage) [runner]=${RUNNER_IMAGE:-$(setting RunnerImage)} [forwarder]=${FORWARDER_IMAGE:-})
  for word in $(setting RuntimeImages | tr , ' '); do images[pulumi-${word%%=*}]=${word#*=}; done
  for name in "${!images[@]}"; do
    if [ -z "${images[$name]}" ]; then
      unset "images[$name]"
    elif [[ ${images[$name]} != "$account".dkr.ecr.* ]]; then
      foreign[$name]=${images[$name]}
    fi
  done
  for context in "${clusters[@]}"; do [ -n "$(eks_of "$kubeconfig" "$context")" ] || others+=("$context"); done
  if [ -n "${foreign[forwarder]:-}" ] && [ ${#others[@]} != 0 ]; then
    [ "$COPY_IMAGES" = no ] ||
      say "image ${foreign[forwarder]}: not copied, because the nodes of clusters outside EKS have no login to ECR: ${others[*]}"
    unset 'foreign[forwarder]'
  fi
  for name in "${!images[@]}"; do
    if [[ ${images[$name]} == "$registry/$stack/copies/"* ]]; then
      word=${images[$name]#"$registry/$stack/copies/"}
      pulled+=("${word%%[:@]*}")
    elif [ "$COPY_IMAGES" = yes ] && [ -n "${foreign[$name]:-}" ]; then
      pulled+=("$name")
    fi
  done
  python3 - "$(setting ImageRepositories)" "arn:$partition:ecr:$region:$account:repository/$stack/copies" "${pulled[@]}" <<'PYTHON' ||
import fnmatch, sys
patterns = [one.strip() for one in sys.argv[1].split(",") if one.strip()]
missing = [name for name in sys.argv[3:] if name != "forwarder"
           if patterns and not any(fnmatch.fnmatchcase(f"{sys.argv[2]}/{name}", one.replace("[", "[[]")) for one in patterns)]
sys.exit(1 if missing else 0)
PYTHON
    fail "ImageRepositories does not let tasks pull from $stack/copies/*, which has copies of the images; nothing was changed" \
      "add arn:$partition:ecr:$region:$account:repository/$stack/copies/* to it: PARAMETERS=ImageRepositories=…" "$without"
  copier=$(type -P crane || type -P skopeo || true)
  [ ${#foreign[@]} != 0 ] || return 0
  if [ "$COPY_IMAGES" = no ]; then
    say "COPY_IMAGES=no: these images stay in other registries, which limit pulls: ${foreign[*]}"
    limits | sort -u >&2
    return
  fi
  [ -n "$copier" ] ||
    fail "neither crane nor skopeo is on PATH, and one of them copies the images into this account's ECR; nothing was changed" \
      'install crane: tests/tools/install registry, or https://github.com/google/go-containerregistry' "$without"
  local login=(login --username AWS --password-stdin "$registry")
  [ "${copier##*/}" = skopeo ] || login=(auth "${login[@]}")
  aws ecr get-login-password 2>"$error" | "$copier" "${login[@]}" >>"$error" 2>&1 ||
    fail "cannot log in to $registry: $(tail -n 1 "$error"); nothing was changed" 'allow ecr:GetAuthorizationToken' "$without"
  repositories=$(copies "$stack")
  for name in "${!foreign[@]}"; do check_copy "$name"; done
}

# check_copy NAME: reads the digest of the image of that name, and whether the account has its copy.
check_copy() {
  local image=${foreign[$1]} error=$work/error
  digests[$1]=${image#*@}
  [[ $image == *@* ]] || digests[$1]=$(digest_of "$image" 2>"$error") || unreadable "$image"
  ! grep -qxF "$stack/copies/$1" <<<"$repositories" || ! digest_of "$registry/$stack/copies/$1@${digests[$1]}" >/dev/null 2>&1 || return 0
  [[ $image != *@* ]] || digest_of "$(tagless "$image")@${digests[$1]}" >/dev/null 2>"$error" || unreadable "$image"
  absent[$1]=$image
}

unreadable() {
  fail "cannot read image $1: $(tail -n 1 "$work/error"); nothing was changed" \
    "log in to its registry with ${copier##*/}, or correct its name" "$without"
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
  case ${copier##*/} in
    crane) crane digest "$1" ;;
    skopeo) skopeo inspect --raw "docker://$1" | sha256sum | sed 's/^/sha256:/; s/ .*//' ;;
  esac
}

# own_digest_of IMAGE: the same for an image in the account's ECR, which needs no login.
own_digest_of() {
  local host=${1%%/*} name=${1#*/} place tag=latest
  place=${host#*.ecr.}
  [[ $name != *:* ]] || tag=${name##*:}
  aws --region "${place%%.*}" ecr describe-images --repository-name "${name%:*}" --image-ids "imageTag=$tag" --output text \
    --query 'imageDetails[0].imageDigest'
}

# Copies $absent with all platforms, which keeps the digest, and replaces the images by the copies, by digest.
copy_images() {
  local name image repository error=$work/error
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
          skopeo copy --all --preserve-digests "docker://$(tagless "$image")@${digests[$name]}" \
            "docker://$registry/$repository:${digests[$name]#*:}" ;;
      esac >"$error" 2>&1 || fail "the image $image was not copied: $(tail -n 1 "$error")" \
        "allow pushes to $stack/copies/* (docs/aws.md), or run it again; it skips the copied images" "$without"
    fi
    use_image "$name" "$registry/$repository@${digests[$name]}"
  done
}

# Replaces the tags of $images by the digests that they have now. Where no registry answers, the tag stays.
pin_images() {
  local name image digest read kept=() error=$work/error
  for name in "${!images[@]}"; do
    image=${images[$name]} read=digest_of
    [[ $image != *@* ]] || continue
    if [[ $image == "$account".dkr.ecr.* ]]; then
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
