// pulumi-resource-world is a provider for tests. Its Object is a file: a program can be made slow or made to fail with it, and whoever
// writes to the file makes drift. Its Identity does what only the one whom the environment names may do.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	provider "github.com/pulumi/pulumi-go-provider"
	"github.com/pulumi/pulumi-go-provider/infer"
)

// Object is a file that holds content and, after it, secretContent.
type Object struct{}

type ObjectArgs struct {
	Path          string `pulumi:"path"`
	Content       string `pulumi:"content"`
	SecretContent string `pulumi:"secretContent,optional" provider:"secret"`
	// How long each create, update and delete takes.
	DelaySeconds float64 `pulumi:"delaySeconds,optional"`
	// How long each look at it takes.
	ReadSeconds float64 `pulumi:"readSeconds,optional"`
	// The path of a marker: while it exists, creates and updates fail.
	FailWhenExists string `pulumi:"failWhenExists,optional"`
	// The path of a marker: while it exists, creates and updates wait, and say so. A test that has to see a run on its way needs no guess at
	// how long it takes.
	WaitWhileExists string `pulumi:"waitWhileExists,optional"`
	// The memory that each create and update uses, besides the provider's own.
	UseMiB int `pulumi:"useMiB,optional"`
}

type ObjectState struct {
	ObjectArgs
	Size int `pulumi:"size"`
}

func (Object) Create(ctx context.Context, req infer.CreateRequest[ObjectArgs]) (infer.CreateResponse[ObjectState], error) {
	state, err := req.Inputs.apply(ctx, req.DryRun)
	return infer.CreateResponse[ObjectState]{ID: req.Inputs.Path, Output: state}, err
}

func (Object) Update(ctx context.Context, req infer.UpdateRequest[ObjectArgs, ObjectState]) (infer.UpdateResponse[ObjectState], error) {
	state, err := req.Inputs.apply(ctx, req.DryRun)
	return infer.UpdateResponse[ObjectState]{Output: state}, err
}

func (args ObjectArgs) apply(ctx context.Context, dryRun bool) (ObjectState, error) {
	body := args.Content + args.SecretContent
	state := ObjectState{ObjectArgs: args, Size: len(body)}
	if dryRun {
		return state, nil
	}
	if !filepath.IsAbs(args.Path) {
		return state, fmt.Errorf("path %q is not absolute", args.Path)
	}
	for round := 0; exists(args.WaitWhileExists); round++ {
		if round%20 == 0 {
			say(ctx, "waiting while "+args.WaitWhileExists+" exists")
		}
		if err := wait(ctx, 0.05); err != nil {
			return state, err
		}
	}
	if err := wait(ctx, args.DelaySeconds); err != nil {
		return state, err
	}
	use(args.UseMiB << 20)
	if exists(args.FailWhenExists) {
		return state, fmt.Errorf("cannot write %s while %s exists", args.Path, args.FailWhenExists)
	}
	if err := os.MkdirAll(filepath.Dir(args.Path), 0o755); err != nil {
		return state, err
	}
	return state, os.WriteFile(args.Path, []byte(body), 0o600)
}

func exists(marker string) bool {
	_, err := os.Stat(marker)
	return marker != "" && err == nil
}

// use writes to so much memory, which counts only then.
func use(size int) {
	memory := make([]byte, size)
	for page := 0; page < size; page += os.Getpagesize() {
		memory[page] = 1
	}
	runtime.KeepAlive(memory)
}

// say keeps a run from being interrupted for its silence.
func say(ctx context.Context, words string) {
	provider.GetLogger(ctx).InfoStatus(words)
}

func wait(ctx context.Context, seconds float64) error {
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Read tells what the file holds now. A file that is gone is a resource that is gone.
func (Object) Read(ctx context.Context, req infer.ReadRequest[ObjectArgs, ObjectState]) (infer.ReadResponse[ObjectArgs, ObjectState], error) {
	for left := req.Inputs.ReadSeconds; left > 0; left-- {
		say(ctx, "reading")
		if err := wait(ctx, min(left, 1)); err != nil {
			return infer.ReadResponse[ObjectArgs, ObjectState]{}, err
		}
	}
	body, err := os.ReadFile(req.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return infer.ReadResponse[ObjectArgs, ObjectState]{}, nil
	}
	args := req.Inputs
	args.Path = req.ID
	args.Content = strings.TrimSuffix(string(body), args.SecretContent)
	return infer.ReadResponse[ObjectArgs, ObjectState]{ID: req.ID, Inputs: args, State: ObjectState{ObjectArgs: args, Size: len(body)}}, err
}

// Diff compares with what the file held when it was last looked at. How slow the resource is, or when it fails, is no change.
func (Object) Diff(_ context.Context, req infer.DiffRequest[ObjectArgs, ObjectState]) (infer.DiffResponse, error) {
	diff := map[string]provider.PropertyDiff{}
	if req.Inputs.Path != req.State.Path {
		diff["path"] = provider.PropertyDiff{Kind: provider.UpdateReplace}
	}
	if req.Inputs.Content != req.State.Content {
		diff["content"] = provider.PropertyDiff{Kind: provider.Update}
	}
	if req.Inputs.SecretContent != req.State.SecretContent {
		diff["secretContent"] = provider.PropertyDiff{Kind: provider.Update}
	}
	return infer.DiffResponse{HasChanges: len(diff) > 0, DetailedDiff: diff}, nil
}

func (Object) Delete(ctx context.Context, req infer.DeleteRequest[ObjectState]) (infer.DeleteResponse, error) {
	if err := wait(ctx, req.State.DelaySeconds); err != nil {
		return infer.DeleteResponse{}, err
	}
	err := os.Remove(req.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return infer.DeleteResponse{}, err
}

func main() {
	if strings.HasPrefix(filepath.Base(os.Args[0]), "pulumi-analyzer-") {
		if err := analyze(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	world, err := infer.NewProviderBuilder().WithResources(infer.Resource(Object{}), infer.Resource(Identity{})).Build()
	if err == nil {
		err = world.Run(context.Background(), "world", "1.0.0")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
