package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/pulumi/pulumi-go-provider/infer"
)

// Identity is a ConfigMap that was made with what a pod knows of its cluster and, if there is an AWS_ROLE_ARN, a session of that role.
type Identity struct{}

type IdentityArgs struct {
	ConfigMap string `pulumi:"configMap"`
}

type IdentityState struct {
	IdentityArgs
	Namespace string `pulumi:"namespace"`
	Role      string `pulumi:"role"`
	// AWS's SDKs take this one where the program names none.
	Region string `pulumi:"region"`
}

func (Identity) Create(ctx context.Context, req infer.CreateRequest[IdentityArgs]) (infer.CreateResponse[IdentityState], error) {
	state := IdentityState{IdentityArgs: req.Inputs, Role: os.Getenv("AWS_ROLE_ARN"), Region: os.Getenv("AWS_REGION") + os.Getenv("AWS_DEFAULT_REGION")}
	answer := infer.CreateResponse[IdentityState]{ID: req.Inputs.ConfigMap, Output: state}
	if req.DryRun {
		return answer, nil
	}
	// First, so that a failed try leaves nothing.
	if state.Role != "" {
		if err := assumeRole(ctx, state.Role); err != nil {
			return answer, err
		}
	}
	cluster, err := reachCluster()
	if err != nil {
		return answer, err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": state.ConfigMap}, "data": map[string]string{"role": state.Role}})
	if err != nil {
		return answer, err
	}
	answer.Output.Namespace = cluster.namespace
	address := cluster.server + "/api/v1/namespaces/" + cluster.namespace + "/configmaps"
	return answer, send(ctx, cluster.client, address, "application/json", cluster.token, body)
}

type cluster struct {
	client                   *http.Client
	server, namespace, token string
}

// reachCluster finds the cluster as client-go does in a pod.
func reachCluster() (cluster, error) {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	texts := map[string]string{}
	for _, name := range []string{"token", "ca.crt", "namespace"} {
		text, err := os.ReadFile(account + name)
		if err != nil {
			return cluster{}, err
		}
		texts[name] = string(text)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(texts["ca.crt"]))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	server := "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return cluster{client, server, texts["namespace"], texts["token"]}, nil
}

func assumeRole(ctx context.Context, role string) error {
	token, err := os.ReadFile(os.Getenv("AWS_WEB_IDENTITY_TOKEN_FILE"))
	if err != nil {
		return err
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {role},
		"RoleSessionName": {os.Getenv("AWS_ROLE_SESSION_NAME")}, "WebIdentityToken": {string(token)},
	}
	address := os.Getenv("AWS_ENDPOINT_URL_STS")
	return send(ctx, http.DefaultClient, address, "application/x-www-form-urlencoded", "", []byte(form.Encode()))
}

func send(ctx context.Context, client *http.Client, address, kind, token string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		words, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return fmt.Errorf("%s: %s", answer.Status, words)
	}
	return nil
}
