// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const systems = "../systems"

// TestSystems renders the values of deploy/systems. kubelet must create the pods' directories only
// where the system is writable.
func TestSystems(t *testing.T) {
	writable := map[string]*regexp.Regexp{
		"openshift":    regexp.MustCompile("^/(etc|opt|run|var)/"), // /opt is a link to /var/opt
		"talos":        regexp.MustCompile("^/(run|var)/"),
		"bottlerocket": regexp.MustCompile("^/(etc|local|opt|run|var)/"),
		"cos":          regexp.MustCompile("^/(etc|home/kubernetes/bin|run|var)/"),
		"gpu-operator": regexp.MustCompile("^/"), // an ordinary distribution
	}
	files, err := filepath.Glob(systems + "/*.yaml")
	if err != nil || len(files) != len(writable) {
		t.Fatalf("%d files of values, want %d: %v", len(files), len(writable), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			if out, err := helm(t, "lint", "--strict", "--namespace", "nri-vgpu-system", "--values", file, chart); err != nil {
				t.Errorf("helm lint: %v%s", err, out)
			}
			rendered := template(t, "nri-vgpu-system", "--values", file)
			if _, err := config.Parse([]byte(configured(t, rendered))); err != nil {
				t.Errorf("config.toml: %v", err)
			}
			for _, object := range decode(t, rendered) {
				set, ok := object.(*appsv1.DaemonSet)
				if !ok {
					continue
				}
				for _, v := range set.Spec.Template.Spec.Volumes {
					if v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate && !writable[name].MatchString(v.HostPath.Path) {
						t.Errorf("kubelet cannot create %s for %s", v.HostPath.Path, set.Name)
					}
				}
			}
		})
	}
}

// TestOpenShift checks the SELinux type of the pods that use the node's files, and the binding to
// SecurityContextConstraints.
func TestOpenShift(t *testing.T) {
	bound := map[string]int{}
	for _, object := range decode(t, template(t, "gpus", "--values", systems+"/openshift.yaml")) {
		switch o := object.(type) {
		case *appsv1.DaemonSet:
			context := o.Spec.Template.Spec.SecurityContext
			if context == nil || context.SELinuxOptions == nil || context.SELinuxOptions.Type != "spc_t" {
				t.Errorf("the pods of %s have the context %+v", o.Name, context)
			}
		case *rbacv1.RoleBinding:
			if o.Namespace == "gpus" {
				bound[o.RoleRef.Name] = len(o.Subjects)
			}
		}
	}
	for name, accounts := range map[string]int{"system:openshift:scc:privileged": 2, "system:openshift:scc:nonroot-v2": 3} {
		if bound[name] != accounts {
			t.Errorf("%d accounts may use %s, want %d", bound[name], name, accounts)
		}
	}
	if plain := template(t, "gpus"); strings.Contains(plain, "seLinuxOptions") || strings.Contains(plain, "openshift") {
		t.Error("the default is for OpenShift")
	}
}
