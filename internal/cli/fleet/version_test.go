// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// TestVersion reads the facts from servers of several versions.
func TestVersion(t *testing.T) {
	const release = `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`
	const none = `{"kind":"APIResourceList","resources":[{"name":"validatingadmissionpolicies"}]}`
	const policies = `{"kind":"APIResourceList","resources":[{"name":"mutatingadmissionpolicies/status"},{"name":"mutatingadmissionpolicies"}]}`
	const list = admission + "/" + mutating
	const others = `{"items":[{"metadata":{"name":"nri-vgpu-scheduler","labels":{"app.kubernetes.io/part-of":"nri-vgpu"}}},{"metadata":{"name":"outfit-fit"}}]}`
	const fit = `{"items":[{"metadata":{"name":"release-fit","labels":{"app.kubernetes.io/part-of":"nri-vgpu"}}}]}`
	for name, tt := range map[string]struct {
		answers map[string]string // by path; "" is forbidden
		want    Version
	}{
		"with the policy":    {map[string]string{"/version": release, admission: policies, list: fit}, Version{Release: "v1.37.1", Policies: true}},
		"without the policy": {map[string]string{"/version": release, admission: policies, list: others}, Version{Release: "v1.37.1", Policies: true, FitMissing: true}},
		"without rights":     {map[string]string{"/version": release, admission: policies, list: ""}, Version{Release: "v1.37.1", Policies: true}},
		"without policies":   {map[string]string{"/version": release, admission: none}, Version{Release: "v1.37.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, known := tt.answers[r.URL.Path]
				switch {
				case !known:
					w.WriteHeader(http.StatusNotFound)
				case answer == "":
					w.WriteHeader(http.StatusForbidden)
				default:
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte(answer))
				}
			}))
			defer server.Close()
			f, err := New(&rest.Config{Host: server.URL}, DefaultNamespace)
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.Version(t.Context())
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	f, err := New(&rest.Config{Host: server.URL}, DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Version(t.Context()); err == nil {
		t.Error("a server without a version is no error")
	}
}
