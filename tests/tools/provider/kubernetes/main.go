// pulumi-resource-kubernetes stands in for the published provider of that name, which tests do not download: the two resources that
// infra/bootstrap uses, as kubectl applies them. It makes no child resources, and waits for CRDs only.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	provider "github.com/pulumi/pulumi-go-provider"
	"github.com/pulumi/pulumi/sdk/v3/go/property"
)

const (
	version = "4.23.0"
	schema  = `{
  "name": "kubernetes", "version": "` + version + `", "meta": { "moduleFormat": "(.*)" },
  "provider": { "inputProperties": { "clusterIdentifier": { "type": "string" } } },
  "resources": {
    "kubernetes:yaml/v2:ConfigFile": {
      "inputProperties": { "file": { "type": "string" }, "skipAwait": { "type": "boolean" } }, "requiredInputs": ["file"]
    },
    "kubernetes:yaml/v2:ConfigGroup": { "inputProperties": { "yaml": { "type": "string" }, "skipAwait": { "type": "boolean" } } }
  }
}`
)

func main() {
	err := provider.RunProvider(context.Background(), "kubernetes", version, provider.Provider{
		GetSchema: func(context.Context, provider.GetSchemaRequest) (provider.GetSchemaResponse, error) {
			return provider.GetSchemaResponse{Schema: schema}, nil
		},
		CheckConfig: check,
		DiffConfig:  diff,
		Configure:   func(context.Context, provider.ConfigureRequest) error { return nil },
		Check:       check,
		Diff:        diff,
		Create: func(ctx context.Context, req provider.CreateRequest) (provider.CreateResponse, error) {
			answer := provider.CreateResponse{ID: req.Urn.Name(), Properties: req.Properties}
			if req.DryRun {
				return answer, nil
			}
			return answer, apply(ctx, req.Properties)
		},
		Update: func(ctx context.Context, req provider.UpdateRequest) (provider.UpdateResponse, error) {
			answer := provider.UpdateResponse{Properties: req.Inputs}
			if req.DryRun {
				return answer, nil
			}
			return answer, apply(ctx, req.Inputs)
		},
		Delete: func(ctx context.Context, req provider.DeleteRequest) error {
			text, err := manifest(req.Properties)
			if err != nil {
				return err
			}
			return kubectl(ctx, text, "delete", "--ignore-not-found", "--filename=-")
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(_ context.Context, req provider.CheckRequest) (provider.CheckResponse, error) {
	return provider.CheckResponse{Inputs: req.Inputs}, nil
}

func diff(_ context.Context, req provider.DiffRequest) (provider.DiffResponse, error) {
	changed := map[string]provider.PropertyDiff{}
	for name, value := range req.Inputs.All {
		if !value.WithSecret(false).Equals(req.State.Get(name).WithSecret(false)) {
			changed[name] = provider.PropertyDiff{Kind: provider.Update}
		}
	}
	return provider.DiffResponse{HasChanges: len(changed) > 0, DetailedDiff: changed}, nil
}

func apply(ctx context.Context, properties property.Map) error {
	text, err := manifest(properties)
	if err == nil {
		err = kubectl(ctx, text, "apply", "--server-side", "--force-conflicts", "--field-manager=pulumi-kubernetes", "--filename=-")
	}
	if err != nil {
		return err
	}
	return kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
}

func manifest(properties property.Map) (string, error) {
	if file, ok := properties.GetOk("file"); ok {
		text, err := os.ReadFile(file.AsString())
		return string(text), err
	}
	return properties.Get("yaml").AsString(), nil
}

func kubectl(ctx context.Context, input string, arguments ...string) error {
	command := exec.CommandContext(ctx, "kubectl", arguments...)
	command.Stdin = strings.NewReader(input)
	if said, err := command.CombinedOutput(); err != nil {
		return errors.New(strings.TrimSpace(string(said)))
	}
	return nil
}
