pipeline {
  agent any
  options { timeout(time: 60, unit: 'MINUTES') }
  stages {
    stage('benchmark') {
      when { changeRequest() }
      steps {
        // A fixed revision, so that the same program measures both sides.
        sh '''
          rm -rf gate
          python3 -m venv --clear .benchmark
          .benchmark/bin/python -m pip install @CNNBENCH@
          git fetch --no-tags origin "+refs/heads/$CHANGE_TARGET:refs/remotes/origin/$CHANGE_TARGET"
        '''
        script {
          def status = sh returnStatus: true, script: '''
            .benchmark/bin/cnnbench gate "origin/$CHANGE_TARGET" HEAD --timeout=300 --results=gate @FLAGS@
          '''
          if (status == 3) {
            unstable('benchmark: undecided, see gate/comment.md')
          } else if (status != 0) {
            error("benchmark: exit code ${status}")
          }
        }
      }
    }
  }
  post {
    always {
      junit testResults: 'gate/junit.xml', allowEmptyResults: true
      archiveArtifacts artifacts: 'gate/**', allowEmptyArchive: true
    }
  }
}
