// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// TestForward checks which requests kubectl vgpu view forwards, and with which headers.
func TestForward(t *testing.T) {
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.URL.Path, r.Header.Get(agentapi.TokenHeader), r.Header.Get("Cookie"))
	}))
	defer behind.Close()
	target, err := url.Parse(behind.URL + "/proxy")
	if err != nil {
		t.Fatal(err)
	}
	const address = "127.0.0.1:1234"
	token := func(context.Context) (string, error) { return "secret", nil }
	for _, c := range []struct {
		method, host, path string
		status             int
		body               string
	}{
		{http.MethodGet, address, "/view/", 200, "/proxy/view/ secret "},
		{http.MethodGet, "localhost:1234", "/view/fleet", 200, "/proxy/view/fleet secret "},
		{http.MethodGet, address, "/", 302, ""},
		{http.MethodGet, "evil.example:1234", "/view/", 403, ""},
		{http.MethodGet, address, "/api/v1/secrets", 404, ""},
		{http.MethodPost, address, "/view/", 404, ""},
		{http.MethodGet, address, "/view/../../secrets", 404, ""},
		{http.MethodGet, address, "/view/%2e%2e/secrets", 404, ""},
		{http.MethodGet, address, "/view//secrets", 404, ""},
		{http.MethodGet, address, "/view/./x", 404, ""},
	} {
		r := httptest.NewRequest(c.method, "http://"+address+c.path, nil)
		r.Host = c.host
		r.Header.Set("Cookie", "of=another")
		answer := httptest.NewRecorder()
		forward(target, http.DefaultTransport, token, address).ServeHTTP(answer, r)
		if answer.Code != c.status || c.body != "" && answer.Body.String() != c.body {
			t.Errorf("%s %s of %s: %d %q", c.method, c.path, c.host, answer.Code, answer.Body)
		}
	}
	refused := func(context.Context) (string, error) { return "", errors.New("no right") }
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "http://"+address+"/view/", nil)
	forward(target, http.DefaultTransport, refused, address).ServeHTTP(answer, r)
	if answer.Code != http.StatusBadGateway {
		t.Errorf("without a token: %d", answer.Code)
	}
}
