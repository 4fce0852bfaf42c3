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

const manifestFile = "deploy/nri-vgpu.yaml"

const manifestHead = `# nri-vgpu: one file that installs it, rendered from deploy/chart by "make chart".
# Set the image's name (three places) to where your nodes can pull it from, and
# the configuration to your wishes, then
#
#   kubectl apply -f nri-vgpu.yaml
#
# docs/operations.md tells how to upgrade and to remove it; docs/security.md
# says what each right below is for.
`

// sourceLine is what helm says of each object.
var sourceLine = regexp.MustCompile(`(?m)^# Source: .*\n`)

// makeManifest renders the chart for kubectl.
func makeManifest(ctx context.Context, helm, root string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, helm, "template", "nri-vgpu", filepath.Join(root, "deploy", "chart"),
		"--namespace", "nri-vgpu-system", "--set", "manifest=true")
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
	return []byte(manifestHead + strings.Join(documents, "\n---\n") + "\n"), nil
}
