// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const examples = "../../../examples"

// These are the module with KubeRay's schemas, and the checksum of the module.
const (
	kubeRay    = "github.com/ray-project/kuberay/ray-operator@v1.5.1"
	kubeRaySum = "h1:7FJYmB8oM+cnjv1VYCj/TfzRZG4XHvvt5Ayn5pZ5A1c="
)

// unknown are the kinds whose schemas the API server lacks. The test creates only their pods.
var unknown = map[string]bool{"Notebook": true}

// TestExamples creates the objects of the examples by a dry run, and each of their pods. In each
// example, a container requests a part of a GPU.
func TestExamples(t *testing.T) {
	t.Parallel()
	x := newExamples(t)
	files, err := filepath.Glob(examples + "/*/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("only %d examples: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			asking, services := 0, false
			var specs []corev1.PodSpec
			for _, object := range documents(t, file) {
				kind, _ := object["kind"].(string)
				if kind != "" && !unknown[kind] {
					x.apply(t, object)
				}
				services = services || kind == "Service"
				specs = append(specs, podSpecs(t, object)...)
			}
			for _, spec := range specs {
				asking += x.create(t, spec)
				if services && (spec.EnableServiceLinks == nil || *spec.EnableServiceLinks) {
					t.Error("variables of the example's Service can collide with those of its program, as VLLM_PORT does: set enableServiceLinks: false")
				}
			}
			if asking == 0 {
				t.Error("no container requests a part of a GPU")
			}
		})
	}
}

// exampleSuite creates objects in a namespace.
type exampleSuite struct{ namespace, kubectl, kubeconfig string }

func newExamples(t *testing.T) exampleSuite {
	t.Helper()
	x := exampleSuite{unique("examples"), plane.binaries["kubectl"], filepath.Join(t.TempDir(), "kubeconfig")}
	writeKubeconfig(t, plane.admin, x.kubeconfig)
	x.run(t, nil, "create", "namespace", x.namespace)
	if err := serviceAccount(t, x.namespace, "default"); err != nil {
		t.Fatal(err)
	}
	schema := filepath.Join(moduleDir(t, kubeRay, kubeRaySum), "config", "crd", "bases", "ray.io_rayclusters.yaml")
	x.run(t, nil, "apply", "--server-side", "-f", schema)
	eventually.Holds(t, 30*time.Second, "the API server serves KubeRay's schema", func() bool {
		return x.try(t, nil, "get", "rayclusters") == nil
	})
	return x
}

func (x exampleSuite) run(t *testing.T, in []byte, args ...string) {
	t.Helper()
	if err := x.try(t, in, args...); err != nil {
		t.Fatal(err)
	}
}

func (x exampleSuite) try(t *testing.T, in []byte, args ...string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), x.kubectl, append([]string{"--kubeconfig", x.kubeconfig}, args...)...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return err
}

// apply creates an object by a dry run, which rejects unknown fields.
func (x exampleSuite) apply(t *testing.T, object map[string]any) {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	x.run(t, text, "-n", x.namespace, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
}

// create creates a pod by a dry run, and returns the number of its containers that request a part
// of a GPU.
func (x exampleSuite) create(t *testing.T, spec corev1.PodSpec) (asking int) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "example"}, Spec: spec}
	made, err := clientOf(t, plane.admin).CoreV1().Pods(x.namespace).Create(t.Context(), pod, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := request.FromPod(made, config.Default().Dialects)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range asked.Containers {
		if c.Asks() {
			asking++
		}
	}
	return asking
}

// podSpecs returns the specs of all pods in an object, and a spec for each set of limits of
// JupyterHub's profiles.
func podSpecs(t *testing.T, object any) []corev1.PodSpec {
	t.Helper()
	var specs []corev1.PodSpec
	switch value := object.(type) {
	case []any:
		for _, item := range value {
			specs = append(specs, podSpecs(t, item)...)
		}
	case map[string]any:
		if _, ok := value["containers"]; ok {
			var spec corev1.PodSpec
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(value, &spec, true); err != nil {
				t.Fatal(err)
			}
			return []corev1.PodSpec{spec}
		}
		if limits, ok := value["extra_resource_limits"].(map[string]any); ok {
			return []corev1.PodSpec{notebook(limits)}
		}
		for _, item := range value {
			specs = append(specs, podSpecs(t, item)...)
		}
	}
	return specs
}

// notebook returns the spec of a pod with the limits of a profile.
func notebook(limits map[string]any) corev1.PodSpec {
	list := corev1.ResourceList{}
	for name, amount := range limits {
		list[corev1.ResourceName(name)] = resource.MustParse(amount.(string))
	}
	return corev1.PodSpec{Containers: []corev1.Container{{
		Name: "notebook", Image: "notebook", Resources: corev1.ResourceRequirements{Limits: list},
	}}}
}

func documents(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		var object map[string]any
		if err == nil {
			err = yaml.Unmarshal(document, &object)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, object)
	}
}

// moduleDir downloads a Go module and returns its directory.
func moduleDir(t *testing.T, module, sum string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	var downloaded struct{ Dir, Sum, Error string }
	if decoded := json.Unmarshal(out, &downloaded); decoded != nil || err != nil || downloaded.Sum != sum {
		t.Fatalf("download %s: %v, %v, %s, checksum %q, want %q", module, err, decoded, downloaded.Error, downloaded.Sum, sum)
	}
	return downloaded.Dir
}
