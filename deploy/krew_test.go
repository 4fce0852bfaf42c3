// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

// TestKrewsTemplate checks that krew's template results in a manifest that names the content of
// `make plugin`.
func TestKrewsTemplate(t *testing.T) {
	text, err := os.ReadFile("krew/vgpu.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type release struct{ TagName string }
	// As in krew-release-bot, the argument is a template.
	asset := func(uri, tag string) (string, error) {
		var b strings.Builder
		parsed, err := template.New("uri").Parse(uri)
		if err == nil {
			err = parsed.Execute(&b, release{tag})
		}
		return fmt.Sprintf("uri: %s\n      sha256: %064d", b.String(), 0), err
	}
	parsed, err := template.New("krew").Funcs(template.FuncMap{"addURIAndSha": asset}).Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := parsed.Execute(&b, release{"v1.2.3"}); err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Kind string
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal([]byte(b.String()), &manifest); err != nil {
		t.Fatal(err)
	}
	const want = "https://github.com/nri-vgpu/nri-vgpu/releases/download/v1.2.3/kubectl-vgpu_linux_amd64.tar.gz"
	if p := manifest.Spec.Platforms; manifest.Kind != "Plugin" || manifest.Spec.Version != "v1.2.3" || len(p) != 1 || p[0].URI != want || p[0].Bin != "kubectl-vgpu" {
		t.Errorf("the manifest is\n%s", b.String())
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if archive := want[strings.LastIndex(want, "/"):]; !strings.Contains(string(makefile), "$(BUILD)"+archive) {
		t.Errorf("the Makefile does not make %s", archive)
	}
}
