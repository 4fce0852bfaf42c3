// SPDX-License-Identifier: Apache-2.0

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

const manifestHead = `# This file installs nri-vgpu. "make chart" renders the file from deploy/chart. Set the
# image's name (three places) to an image that your nodes can pull, edit the configuration,
# and run
#
#   kubectl apply -f nri-vgpu.yaml
#
# docs/how-to describes upgrades and removal, and docs/reference/privileges.md describes the
# reason for each right below.
`

const uninstallHead = `# This file removes nri-vgpu from nodes and Nodes after an installation with nri-vgpu.yaml.
# "make chart" renders the file from deploy/chart. Set the image's name as in nri-vgpu.yaml
# (three places), and follow the order of docs/how-to/uninstall.md.
`

// sourceLine matches the line that helm writes before each object.
var sourceLine = regexp.MustCompile(`(?m)^# Source: .*\n`)

// makeManifest renders the manifest that installs nri-vgpu.
func makeManifest(ctx context.Context, helm, root string) ([]byte, error) {
	return forKubectl(ctx, helm, root, manifestHead, "--set", "manifest=install")
}

// makeUninstall renders the manifest that uninstalls nri-vgpu.
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
