package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	manifestFile  = "deploy/nri-vgpu.yaml"
	uninstallFile = "deploy/uninstall.yaml"
)

const manifestHead = `# nri-vgpu: one file that installs it, rendered from deploy/chart by "make chart".
# Set the image's name (three places) to where your nodes can pull it from, and
# the configuration to your wishes, then
#
#   kubectl apply -f nri-vgpu.yaml
#
# docs/operations.md tells how to upgrade and to remove it; docs/security.md
# says what each right below is for.
`

const uninstallHead = `# Takes nri-vgpu off nodes and Nodes where it was installed by nri-vgpu.yaml; rendered
# from deploy/chart by "make chart". Set the image's name as there (three places),
# and keep to the order that docs/operations.md tells.
`

// sourceLine is what helm says of each object.
var sourceLine = regexp.MustCompile(`(?m)^# Source: .*\n`)

// makeManifest renders what kubectl applies to install nri-vgpu.
func makeManifest(ctx context.Context, helm, root string) ([]byte, error) {
	return forKubectl(ctx, helm, root, manifestHead, "--set", "manifest=install")
}

// makeUninstall renders what kubectl applies to uninstall it.
func makeUninstall(ctx context.Context, helm, root string) ([]byte, error) {
	return forKubectl(ctx, helm, root, uninstallHead, "--set", "manifest=uninstall", "--show-only", "templates/cleanup.yaml")
}

func forKubectl(ctx context.Context, helm, root, head string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, helm, append([]string{"template", "nri-vgpu", filepath.Join(root, "deploy", "chart"),
		"--namespace", "nri-vgpu-system"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm template: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	text := sourceLine.ReplaceAllString(string(out), "")
	var documents []string
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if document = strings.Trim(document, "\n"); document != "" {
			documents = append(documents, document)
		}
	}
	return []byte(head + strings.Join(documents, "\n---\n") + "\n"), nil
}
